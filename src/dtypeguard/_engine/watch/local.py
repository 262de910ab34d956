"""What each thread has of its own in an audit; and where the program is, for a thread of autograd that it waits for."""

import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from types import FrameType

from ..._core.base import private
from ..._core.base.patches import here as threads
from .failures import Caught, Failure
from .sites import Door


@dataclass(slots=True)
class Place:
    """Where the program is, in a thread of its own.

    Attributes:
        thread: its number.
        modules: those whose forward is running.
        doors: of these modules.
        regions: of autocast: whether it is enabled, by type of device.
        caught: exceptions that the program has caught.
        failure: the exception that is on its way.
    """

    thread: int = 0
    modules: list[str] = field(default_factory=list)
    doors: list[Door] = field(default_factory=list)
    regions: dict[str, bool] = field(default_factory=dict)
    caught: deque[Caught] = field(default_factory=lambda: deque(maxlen=64))
    failure: Failure | None = None


class Local(threading.local):
    """What each thread has of its own.

    The backward of a GPU's operations runs in a thread of autograd, without Python below it, while a thread of the
    program waits: such a thread has the place of the one that entered the audit.
    """

    def __init__(self, entered: Place) -> None:
        self._entered: Place = entered
        self.on: bool = False  # threads that the program had before go on by themselves
        self.paused: int = 0
        self.converting: bool = False  # in `Module.to` and the like
        self.loading: int = 0  # in load_state_dict
        self.caller: FrameType | None = None  # of an operation that is taken apart
        self.cast_whole: bool = False  # in one whose inputs autocast has cast, and none of its parts
        self._at(entered if threads.foreign and private.graph_task() != -1 else Place(threading.get_ident()))

    def _at(self, place: Place) -> None:
        self.place: Place = place
        self.modules: list[str] = place.modules
        self.doors: list[Door] = place.doors
        self.regions: dict[str, bool] = place.regions
        self.caught: deque[Caught] = place.caught

    def enter(self) -> None:
        """The audit is entered in this thread."""
        self.on = True
        self._entered.thread = threading.get_ident()
        self._at(self._entered)

    @property
    def failure(self) -> Failure | None:
        return self.place.failure

    @failure.setter
    def failure(self, failure: Failure | None) -> None:
        self.place.failure = failure

    def waiting(self) -> FrameType | None:
        """The frame of the program in a thread that waits for this one."""
        thread = self.place.thread
        return None if thread == threading.get_ident() else sys._current_frames().get(thread)
