"""The errors a user can cause or mend: one line that names the place and the remedy, and an exit code."""


class SemifedError(Exception):
    """Anything that ends a command with one line instead of a traceback."""

    exit_code = 1


class SettingError(SemifedError):
    """A setting that is unknown, of the wrong type, out of range, or does not fit another."""

    exit_code = 2


class DataError(SemifedError):
    """A data file that is missing, corrupt or not what it claims to be, or a split that cannot be made."""

    exit_code = 3


class RunError(SemifedError):
    """A run folder that is in use, taken, foreign or damaged."""

    exit_code = 4


class OwnCodeError(SemifedError):
    """An error raised inside a user's own method or net."""

    exit_code = 5


class StoppedError(SemifedError):
    """A command that was ended with Ctrl-C."""

    exit_code = 130
