"""What the checks of Python clients share."""


def fails(error, part, call):
    try:
        call()
    except error as e:
        assert part in str(e), e
        return
    raise AssertionError(f"no {error.__name__}: {part}")
