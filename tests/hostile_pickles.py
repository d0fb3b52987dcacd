"""Pickles as a stranger would put them into a dataset directory."""

from __future__ import annotations

_DTYPE = b"cnumpy\ndtype\n"
_PLAIN = b"(K\x03X\x01\0\0\0|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb"
# Eight bytes without a type, in an array that owns them; its dtype stays in the memo.
_ARRAY = (
    b"cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
    b"(K\x01K\x01\x85" + _DTYPE + b"X\x02\0\0\0V8\x89\x88\x87Rq\x00\x89C\x08AAAAAAAAtb"
)
# The dtype is told that the bytes are a pointer to an object, which is let go of with the array.
_CHANGE = (
    b"h\x00(K\x03X\x01\0\0\0|NX\x01\0\0\0a\x85}X\x01\0\0\0a"
    + (_DTYPE + b"X\x02\0\0\0O8\x89\x88\x87R" + _PLAIN)
    + b"K\x00\x86sK\x08K\x01K\x1btb0"
)

# A list of one entry of a journal, ("state", array).
OBJECT_POINTER = b"\x80\x03]X\x05\0\0\0state" + _ARRAY + _CHANGE + b"\x86a."
