"""Between a program and the processes that it starts through `muster`: they take their call, and give back its result.

The program listens at a unix socket in a private folder, or at a port where ranks are on other hosts. Both sides prove that
they know a key (multiprocessing's handshake) before anything is unpickled.
"""
from __future__ import annotations

import functools
import os
import secrets
import shutil
import socket
import tempfile
import threading
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Callable, Dict, NamedTuple, Optional

from muster._forks import owned_by_this_process
from muster._threads import Threads

ADDRESS = "MUSTER_CALL"  # where a started process finds its call
KEY = "MUSTER_CALL_KEY"
NUMBER = "MUSTER_CALL_ID"  # of an Executor's task, or of a warm worker
LOG = "MUSTER_CALL_LOG"  # of a warm worker, which writes there itself
_LONGEST_ADDRESS = 107  # bytes, of a unix socket


class Call(NamedTuple):
    """What a started process is to do. A warm worker has many, and the attempt and the folder are each call's own."""

    packed: bytes
    attempt: int
    folder: str = ""  # for what a task writes; empty: none, or that of its job
    makes_folder: bool = False  # or one of another name beside it, where somebody has that already


Take = Callable[[Dict[str, Any], Connection], None]


class Channel:
    """Listens until it is closed. `on_hello` is called in a thread for each process that comes: with what it said, and the
    connection."""

    def __init__(self, on_hello: Take, across_hosts: bool = False) -> None:
        _fill_standard_descriptors()
        self._on_hello = on_hello
        self._key = secrets.token_bytes(32)
        self._folder: Optional[str] = None
        self._closed = False
        self._threads = Threads("muster-channel")
        if across_hosts:
            self._listener = Listener(("0.0.0.0", 0), family="AF_INET", backlog=1024, authkey=self._key)
            host = socket.getfqdn()
            self._address = f"{host}:{self._listener.address[1]}"
        else:
            self._folder = _private_folder()
            self._address = os.path.join(self._folder, "s")
            self._listener = Listener(self._address, family="AF_UNIX", backlog=1024, authkey=self._key)
        owned_by_this_process(self)
        threading.Thread(target=self._accept, name="muster-channel", daemon=True).start()

    def environment(self) -> dict[str, str]:
        """What a started process needs to find this channel."""
        return {ADDRESS: self._address, KEY: self._key.hex()}

    def expect(self, number: int) -> None:
        """So many processes may come and stay at a time. The threads that serve them are started now."""
        self._threads.keep(number)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except Exception:  # a stranger, or one that died in the handshake, or this channel is closed
                if self._closed:
                    return
                continue
            self._threads.run(functools.partial(self._serve, connection))

    def _serve(self, connection: Connection) -> None:
        with connection:
            try:
                hello = connection.recv()
                self._on_hello(hello, connection)
            except (EOFError, OSError):
                pass  # it has died; the launcher tells how

    def close(self) -> None:
        """No more processes are let in."""
        if self._closed:
            return
        self._closed = True
        try:  # accept() notices no close
            if self._folder is None:
                with socket.create_connection(self._listener.address[:2], timeout=1):
                    pass
            else:
                with socket.socket(socket.AF_UNIX) as waker:
                    waker.connect(self._address)
        except OSError:
            pass
        self._listener.close()
        self._threads.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def let_go(self) -> None:
        """The folder is the parent's."""
        self._closed = True
        self._listener.close()


def _fill_standard_descriptors() -> None:
    """A program that a service has started may have closed them. What is opened next would get their numbers, and a child its own
    input or output instead of it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null == number:
                os.set_inheritable(null, True)
            else:  # another thread has opened it meanwhile
                os.close(null)


def _private_folder() -> str:
    """Short enough for the address of a unix socket, whatever TMPDIR is."""
    folder = tempfile.mkdtemp(prefix="muster-call-")
    if len(os.fsencode(os.path.join(folder, "s"))) <= _LONGEST_ADDRESS:
        return folder
    os.rmdir(folder)
    return tempfile.mkdtemp(prefix="muster-call-", dir="/tmp")


def connect(hello: Dict[str, Any]) -> Connection:
    """In a started process: to whoever has started it."""
    address = os.environ.pop(ADDRESS)
    key = bytes.fromhex(os.environ.pop(KEY))
    host, _, port = address.rpartition(":")
    connection = Client((host, int(port)) if port.isdigit() and host else address, authkey=key)
    connection.send(hello)
    return connection


def send_call(connection: Connection, call: Optional[Call]) -> None:
    """To a started process; None: there is no more. What is packed may be large, and is not packed again."""
    connection.send(call and call._replace(packed=b""))
    if call is not None:
        connection.send_bytes(call.packed)


def answer_of(connection: Connection, note: Callable[[Dict[str, Any]], None] = lambda answer: None,
              note_folder: Callable[[str], None] = lambda folder: None) -> Dict[str, Any]:
    """Of a started process. It goes on, and may end, once its answer was noted. Before it, one that has made its folder says which."""
    answer: Dict[str, Any] = connection.recv()
    if answer["kind"] == "folder":
        note_folder(answer["folder"])
        answer = connection.recv()
    if answer["kind"] == "returned":
        answer["result"] = connection.recv_bytes()
    note(answer)
    connection.send("taken")
    return answer


def next_call(connection: Connection) -> Optional[Call]:
    """In a started process: the next one; None when there is no more."""
    try:
        call: Optional[Call] = connection.recv()
        return call and call._replace(packed=connection.recv_bytes())
    except (EOFError, OSError):
        return None
