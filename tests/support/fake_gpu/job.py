"""A process that calls the fake CUDA and NCCL libraries on command: a JSON string of Python per
line in, a line out.
"""

import ctypes
import json
import os
import sys
import threading
import time

FOLDER = sys.argv[1]
P, S, L, D = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long, ctypes.c_double
I = ctypes.c_int  # noqa: E741 - reads like a C type in the lines it is sent


class Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


def uid(data):
    value = UniqueId()
    ctypes.memmove(ctypes.byref(value), bytes(data), 128)
    return value


def load(name):
    return ctypes.CDLL(f"{FOLDER}/{name}")


burst = load("libburst.so")
burst.burst.argtypes, burst.burst.restype = [P, L, D], L
burst.burst_threads.argtypes = [P, L, I]


def address(function):
    return ctypes.cast(function, P).value


scope = {**globals(), "os": os, "sys": sys, "threading": threading, "time": time}
print("ready", flush=True)
for line in sys.stdin:
    exec(json.loads(line), scope)
    print(scope.pop("result", None), flush=True)
