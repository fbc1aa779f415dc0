"""What every error message of gpt2np must be."""


def assert_one_line(error):
    """Check that an error's message is one printable line of bounded length."""
    message = str(error)
    assert message and message.isprintable() and len(message) < 2100
