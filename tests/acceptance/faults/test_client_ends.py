"""Programs that only use the client end with their own exit code, time after time.

The interpreter can crash while it ends when temporalio ran in it; ``process.leave`` is the way
around that, and this is the check that it works for whoever uses it as its documentation says.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from typing import Any

TIMES = 12
AT_A_TIME = 3

PROGRAM = """
import asyncio, sys
from perdure.client import connect
from perdure.process import leave

async def main(store, temporal, task_queue, number):
    async with connect(store, temporal=temporal, task_queue=task_queue) as client:
        run = await client.running("ends")
        assert (await run.state())["status"] == "awaiting-approval"
        assert len(await client.approvals.list("ends")) == 1
        assert len(await client.history("ends")) > 1
    return number

leave(asyncio.run(main(*sys.argv[1:4], int(sys.argv[4]))))
"""


async def test_client_programs_exit_with_their_own_codes(new_rig: Any, rig_module: Any) -> None:
    from perdure.client import connect

    rig = new_rig("ends")
    rig.start_worker()
    async with connect(rig.store_url, temporal=rig.address, task_queue=rig.task_queue) as client:
        await client.start("trip", "Plan my trip", session_id="ends")
        await rig_module.approval_of(client, "ends")

    limit = asyncio.Semaphore(AT_A_TIME)

    async def code_of(number: int) -> str:
        arguments = [rig.store_url, rig.address, rig.task_queue, str(number)]
        async with limit:
            program = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PROGRAM, *arguments, stderr=subprocess.PIPE
            )
            _, error = await program.communicate()
        if program.returncode == number:
            return "its own"
        return f"{program.returncode}, not {number}: {error.decode()[-500:]}"

    codes = await asyncio.gather(*map(code_of, range(TIMES)))
    assert Counter(codes) == {"its own": TIMES}
