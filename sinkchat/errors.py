"""What can go wrong for a person, and what they can do about it.

    SinkchatError                  exit status
    ├── UsageError                 2   an option or argument cannot be meant
    ├── ModelError                 3   the model is not available
    │   ├── ModelNotFound              no such Hub id, folder, file or alias
    │   ├── ModelGated                 the licence was not accepted, or no token
    │   ├── HubUnreachable             no answer, or offline
    │   ├── NoChatTemplate             a base model, or a template that is not incremental
    │   └── CannotStream               its cached keys cannot be moved
    ├── ResourceError              4   memory or device
    │   ├── OutOfMemory
    │   ├── DeviceUnavailable
    │   ├── DeviceLost                 it failed in mid-work, and nothing more comes from it
    │   ├── NotNumbers                 what it computes overflows
    │   └── CacheFull                  policy `dense` has no room left
    └── InputError                 5   what was piped in cannot be read

Every error carries one sentence that says what happened, with the number, and a `hint`:
what to type instead. Anything else that escapes is our own mistake and shows its traceback.
"""

from enum import IntEnum


class ExitStatus(IntEnum):
    """What the process says when it ends."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    MODEL = 3
    RESOURCE = 4
    INPUT = 5
    HANGUP = 129
    INTERRUPTED = 130
    CLOSED_PIPE = 141
    TERMINATED = 143


class SinkchatError(Exception):
    """A failure that the person can do something about.

    `message` is lower case, one sentence, no full stop; `hint` is what to try, or empty.
    """

    exit_status = ExitStatus.UNEXPECTED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(SinkchatError):
    exit_status = ExitStatus.USAGE


class ModelError(SinkchatError):
    exit_status = ExitStatus.MODEL


class ModelNotFound(ModelError):
    pass


class ModelGated(ModelError):
    pass


class HubUnreachable(ModelError):
    pass


class NoChatTemplate(ModelError):
    pass


class CannotStream(ModelError):
    pass


class ResourceError(SinkchatError):
    exit_status = ExitStatus.RESOURCE


class OutOfMemory(ResourceError):
    pass


class DeviceUnavailable(ResourceError):
    pass


class DeviceLost(ResourceError):
    pass


class NotNumbers(ResourceError):
    pass


class CacheFull(ResourceError):
    pass


class InputError(SinkchatError):
    exit_status = ExitStatus.INPUT
