"""The demo: a trip agent; its worker is killed, its booking approved, and its run forked.

:mod:`.trip` is the agent, :mod:`.worker` the process that serves it, :mod:`.ledger` the outside
world that it acts on, :mod:`.story` what happens, :mod:`.facts` what is counted afterwards.
"""
