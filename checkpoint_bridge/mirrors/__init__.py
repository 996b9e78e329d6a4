"""Sessions carried between stores: saves that go out, sessions that come in."""
