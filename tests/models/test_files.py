"""Files that are missing, truncated, lying or pickled are refused in one line."""

import json
import pickle
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.tiny import MIXTRAL, PREFIX, mixtral, refuses, write, write_index


def test_no_folder(tmp_path):
    refuses(tmp_path / "nowhere", "must be a folder")


def test_a_file_for_a_folder(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    refuses(tmp_path / "model.safetensors", "must be a folder")


def test_no_config(tmp_path):
    save_file(mixtral(), tmp_path / "model.safetensors")
    refuses(tmp_path, "config.json", "readable")


@pytest.mark.parametrize(
    ("text", "part"), [("{", "JSON"), ("[1]", "JSON object"), ("\xff", "JSON"), ("null", "object")]
)
def test_a_config_that_is_none(tmp_path, text, part):
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    refuses(tmp_path, "config.json", part)


def test_no_tensors(tmp_path):
    refuses(write(tmp_path, MIXTRAL), "model.safetensors", "model.safetensors.index.json")


class Explosive:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_pickle_is_named_and_never_opened(tmp_path):
    exploded = tmp_path / "exploded"
    (write(tmp_path, MIXTRAL) / "pytorch_model.bin").write_bytes(pickle.dumps(Explosive(exploded)))
    refuses(tmp_path, "found pytorch_model.bin, which is never read")
    assert not exploded.exists()


def test_a_pickle_in_disguise_is_never_opened(tmp_path):
    exploded = tmp_path / "exploded"
    payload = pickle.dumps(Explosive(exploded))
    (write(tmp_path, MIXTRAL) / "model.safetensors").write_bytes(payload)
    refuses(tmp_path, "must be a complete safetensors file")
    assert not exploded.exists()


def test_truncated_anywhere(tmp_path):
    path = write(tmp_path, MIXTRAL, mixtral()) / "model.safetensors"
    whole = path.read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for size in {0, 1, 7, 8, 9, 100, header - 1, header, header + 1, len(whole) - 1}:
        path.write_bytes(whole[:size])
        refuses(tmp_path, "model.safetensors", "must be a complete safetensors file")


def header_of(entries: dict, *, data: bytes = b"", length: int | None = None) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
LIES = {
    "longer than the file": header_of({"a": ENTRY}, data=bytes(8), length=10**6),
    "longer than memory": header_of({"a": ENTRY}, data=bytes(8), length=2**63),
    "longest": header_of({"a": ENTRY}, data=bytes(8), length=2**64 - 1),
    "shorter than itself": header_of({"a": ENTRY}, data=bytes(8), length=3),
    "no JSON": struct.pack("<Q", 4) + b"{{{{",
    "no object": struct.pack("<Q", 4) + b"[1] ",
    "no UTF-8": struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc",
    "offsets past the end": header_of({"a": ENTRY | {"data_offsets": [0, 16]}}, data=bytes(8)),
    "offsets backwards": header_of({"a": ENTRY | {"data_offsets": [8, 0]}}, data=bytes(8)),
    "negative offset": header_of({"a": ENTRY | {"data_offsets": [-8, 0]}}, data=bytes(8)),
    "overlap": header_of({"a": ENTRY, "b": ENTRY}, data=bytes(8)),
    "shape of another size": header_of({"a": ENTRY | {"shape": [3]}}, data=bytes(8)),
    "overflowing shape": header_of({"a": ENTRY | {"shape": [2**62, 2**62]}}, data=bytes(8)),
    "unknown dtype": header_of({"a": ENTRY | {"dtype": "F31"}}, data=bytes(8)),
    "more data than tensors": header_of({"a": ENTRY}, data=bytes(12)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies(tmp_path, lie):
    (write(tmp_path, MIXTRAL) / "model.safetensors").write_bytes(LIES[lie])
    refuses(tmp_path, "model.safetensors", "must be a complete safetensors file")


def test_a_folder_for_a_file(tmp_path):
    (write(tmp_path, MIXTRAL) / "model.safetensors").mkdir()
    refuses(tmp_path, "model.safetensors", "must be a complete safetensors file")


def test_index_names_a_missing_shard(tmp_path):
    write(tmp_path, MIXTRAL)
    write_index(tmp_path, dict.fromkeys(mixtral(), "model-9.safetensors"))
    refuses(tmp_path, "model-9.safetensors", "must be a complete safetensors file")


@pytest.mark.parametrize(
    "file", ["../model.safetensors", "/etc/model.safetensors", "a/b.safetensors", "..", "", 3, None]
)
def test_index_points_outside(tmp_path, file):
    write(tmp_path / "inner", MIXTRAL)
    save_file(mixtral(), tmp_path / "model.safetensors")
    write_index(tmp_path / "inner", dict.fromkeys(mixtral(), file))
    refuses(tmp_path / "inner", "index.json", "a name inside the folder", repr(file))


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": ["a"]}'])
def test_index_that_is_none(tmp_path, index):
    (write(tmp_path, MIXTRAL) / "model.safetensors.index.json").write_text(index)
    refuses(tmp_path, "index.json", "weight_map")


def test_index_lists_what_is_not_stored(tmp_path):
    gate = PREFIX + "gate.weight"
    rest = {name: tensor for name, tensor in mixtral().items() if name != gate}
    write(tmp_path, MIXTRAL, rest, {"other": np.zeros(1, np.float32)})
    names = dict.fromkeys(mixtral(), "model-0.safetensors")
    write_index(tmp_path, names)
    refuses(tmp_path, "model-0.safetensors", gate, "not found")


def test_index_forgets_what_is_stored(tmp_path):
    tensors = mixtral() | {PREFIX + "gate.bias": np.zeros(2, np.float32)}
    write(tmp_path, MIXTRAL, tensors, {"other": np.zeros(1, np.float32)})
    write_index(tmp_path, dict.fromkeys(mixtral(), "model-0.safetensors"))
    refuses(tmp_path, "gate.bias", "must be listed in the index")
