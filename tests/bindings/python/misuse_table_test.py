"""Every misuse of tests/misuse/table.json, through the package: an exception with the status and the text of the row,
and nothing is lost.
"""

import ctypes
import gc
import json
import pathlib

import pytest

import libstagehand as sh
from libstagehand import _native

TABLE = json.loads((pathlib.Path(__file__).parents[2] / "misuse/table.json").read_text())
MEMORY = ctypes.create_string_buffer(1 << 20)


class World(dict):
    """The objects of a row by name. `held` has the views, and the scopes that were begun."""

    def __init__(self):
        super().__init__(memory=ctypes.addressof(MEMORY), room=ctypes.addressof(MEMORY) + (1 << 19))
        self.held = {}

    def number(self, value):
        if not isinstance(value, str):
            return value
        found = self[value] if value in self else getattr(_native.lib, value)
        return getattr(found, "address", found)

    def all(self, names):
        return [self[name] for name in names]

    def begin(self, kind, name, scope):
        scope.__enter__()
        self.held[kind, name] = scope
        return scope

    def end(self, kind, name, other):
        self.held.pop((kind, name), other).__exit__(None, None, None)

    def acquire(self, runtime, block):
        self.held[runtime, block] = self[runtime].acquire(self[block])

    def view(self, runtime, block):
        """A view that is held, or one that was."""
        if (runtime, block) in self.held:
            return self.held[runtime, block]
        with self[runtime].acquire(self[block]) as view:
            return view

    def options(self, fields, *names):
        fields = fields or {}
        return {name: self.number(fields[name]) for name in names if name in fields}

    def open(self, name, fields):
        fields = fields or {}
        options = self.options(fields, "budget_bytes", "margin_bytes", "page_bytes", "link_bytes_per_second")
        host = fields.get("host", {})
        options |= self.options(host, "staging_bytes", "staging_threads")
        if (node := host.get("node", "SH_HOST_NODE_ANY")) != "SH_HOST_NODE_ANY":
            options["host_node"] = node - 1
        if "device_memory" in fields:
            options["device_memory"] = self.number(fields["device_memory"]), fields["device_memory_bytes"]
        texts = {"backend_options": fields.get("backend_options"), "staging_cpus": host.get("staging_cpus")}
        return sh.Device(name, **options, **texts)

    def sources(self, segments):
        memory = memoryview(MEMORY).cast("B")
        sources = [memory[: one["bytes"]] if one["bytes"] <= len(memory) else bytes(one["bytes"]) for one in segments]
        return [sh.Segment(source, one.get("offset", 0)) for source, one in zip(sources, segments)]

    def desc(self, fields):
        mutable = fields.get("flags") == "SH_BLOCK_MUTABLE"
        return sh.BlockDesc(self.sources(fields["segments"]), fields.get("name"), fields["bytes"], mutable)

    def register(self, runtime, descs):
        return self[runtime].register_blocks(map(self.desc, descs))[0]

    def register_set(self, runtime, fields, descs, blocks):
        options = self.options(fields, "call_members", "group_members", "slots", "stride")
        made = self[runtime].register_set(map(self.desc, descs), name=fields.get("name"), **options)
        if isinstance(blocks, str):
            self[blocks] = made.blocks[0]
        return made

    def acquire_members(self, name, numbers):
        self.held["members", name] = self[name].acquire(numbers)

    def pause(self, device, fields):
        fields = fields or {}
        options = self.options(fields, "contents", "format") | {"folder": fields.get("folder")}
        options["unused"] = [(one["address"], one["bytes"]) for one in fields.get("unused", ())]
        options["prepare"] = fields.get("flags") == "SH_OCCUPANCY_PREPARE"
        self[device].pause(fields.get("tags"), **options)

    def alloc(self, device, size, fields):
        options = self.options(fields, "contents", "format")
        return self[device].alloc(size, tag=(fields or {}).get("tag"), **options)

    def spiller(self, device, fields):
        fields = fields or {}
        options = self.options(fields, "high_watermark_bytes", "low_watermark_bytes", "pool_bytes")
        classes = [(one["bytes"], one.get("count", 0)) for one in fields.get("classes", ())]
        return sh.Spiller(self[device], keep_bytes=0 if "flags" in fields else None, classes=classes, **options)

    def spill(self, spiller, fields, flags):
        now, keep = bool(flags & 1), bool(flags & 2)
        options = self.options(fields, "element_bytes", "format")
        return self[spiller].spill(self.number(fields["address"]), fields["sizes"], now=now, keep=keep, **options)

    def telemetry(self, runtime, spiller, path):
        return self.begin("lines", runtime or spiller, self[runtime or spiller].telemetry(path))


# The arguments are those of the C interface. What a call returns gets the name of its last argument.
CALLS = {
    "sh_acquire": lambda w, r, b, *_: w.acquire(r, b),
    "sh_acquire_many": lambda w, r, b, *_: w[r].acquire_many(w.all(b)),
    "sh_acquire_members": lambda w, r, s, m, *_: w.acquire_members(s, m),
    "sh_alloc": lambda w, d, bytes, o, _: w.alloc(d, bytes, o),
    "sh_block_get_state": lambda w, r, b, _: w[r].block_info(w[b]),
    "sh_capture_begin": lambda w, r, s: w[r].capture(w.number(s)).__enter__(),
    "sh_device_close": lambda w, d: w[d].close(),
    "sh_device_get_caps": lambda w, d, _: w[d].capabilities(),
    "sh_device_get_clock": lambda w, d, _: w[d].clock_ns(),
    "sh_device_get_memory": lambda w, d, _: w[d].memory(),
    "sh_device_open": lambda w, name, o, _: w.open(name, o),
    "sh_device_set_budget": lambda w, d, bytes: w[d].set_budget(bytes),
    "sh_guest_begin": lambda w, r, *_: w[r].as_guest(w[r]).__enter__(),
    "sh_host_alloc": lambda w, d, bytes, *_: sh.PinnedMemory(w[d], bytes),
    "sh_invalidate_blocks": lambda w, r, b, _: w[r].invalidate(w.all(b)),
    "sh_keep_resident": lambda w, r, _: w.begin("scope", r, w[r].keep_resident()),
    "sh_kind_list": lambda w, r, *_: w[r].kinds(),
    "sh_mark_dirty": lambda w, r, b: w.view(r, b).mark_dirty(),
    "sh_occupancy_add_callbacks": lambda w, d, before, *_: w[d].on_pause(before and print),
    "sh_occupancy_get_info": lambda w, d, tag, _: w[d].occupancy(tag),
    "sh_occupancy_list": lambda w, d, *_: w[d].occupancies(),
    "sh_occupancy_read": lambda w, d, address, bytes, _: w[d].read_released(w.number(address), bytes),
    "sh_occupancy_trim": lambda w, d, _: w[d].trim_occupancy(),
    "sh_pause": lambda w, d, o, _: w.pause(d, o),
    "sh_plan": lambda w, r, o, _: w[r].plan(dry_run=bool(o), **w.options(o, "budget_bytes", "link_bytes_per_second")),
    "sh_prefetch": lambda w, r, b, _: w[r].prefetch(w.all(b)),
    "sh_prefetch_members": lambda w, r, s, m, chances, _: w[s].prefetch(m, chances),
    "sh_prefetch_spilled": lambda w, s, t, a, *_: w[s].prefetch(w.all(t), [w.number(one) for one in a], None),
    "sh_protect_blocks": lambda w, r, b, *_: w[r].protect(w.all(b)).__enter__(),
    "sh_read_block": lambda w, r, b, _, offset, to, bytes: w.view(r, b).read(offset, bytes),
    "sh_register_blocks": lambda w, r, descs, *_: w.register(r, descs),
    "sh_register_parts": lambda w, r, desc, o, *_: w[r].register_parts(w.desc(desc), o["unit_bytes"]),
    "sh_release": lambda w, r, b, _: w.held.pop((r, b)).release(),
    "sh_release_members": lambda w, r, s, *_: w.held.pop(("members", s)).release(),
    "sh_reserve": lambda w, r, bytes, *_: w[r].reserve(bytes=bytes).__enter__(),
    "sh_restore": lambda w, s, t, to, _: w[t].restore(w.number(to)),
    "sh_resume": lambda w, d, o, _: w[d].resume((o or {}).get("tags")),
    "sh_runtime_create": lambda w, d, o, _: sh.Runtime(w[d], name=(o or {}).get("name")),
    "sh_runtime_destroy": lambda w, r: w[r].close(),
    "sh_runtime_get_stats": lambda w, r, _: w[r].stats(),
    "sh_runtime_synchronize": lambda w, r: w[r].synchronize(),
    "sh_scope_end": lambda w, s: w[s].__exit__(None, None, None),
    "sh_set_create": lambda w, r, o, descs, _, blocks, out: w.register_set(r, o, descs, blocks),
    "sh_set_destroy": lambda w, r, s: w[s].unregister(),
    "sh_set_get_info": lambda w, r, s, _: w[s].info(),
    "sh_set_log": lambda w, level, *_: sh.set_log(level, print),
    "sh_set_pressure": lambda w, r, *_: w[r].set_pressure(None),
    "sh_set_schedule": lambda w, r, uses, _: w[r].set_schedule(w[use["block"]] for use in uses),
    "sh_source_replace": lambda w, r, b, segments, _: w[r].replace_source(w[b], w.sources(segments)),
    "sh_source_update_begin": lambda w, r, b, _: w.begin("update", b[0], w[r].update_sources(w.all(b))),
    "sh_source_update_end": lambda w, r, b, _: w.end("update", b[0], w[r].update_sources(w.all(b))),
    "sh_spill": lambda w, s, tensor, _, flags, out: w.spill(s, tensor, flags),
    "sh_spiller_begin_step": lambda w, s, number: w[s].begin_step(number),
    "sh_spiller_collect": lambda w, s, _, flags, *rest: w[s].collect(all=bool(flags)) and None,
    "sh_spiller_create": lambda w, d, o, _: w.spiller(d, o),
    "sh_spiller_destroy": lambda w, s: w[s].close(),
    "sh_spiller_end_step": lambda w, s: w[s].end_step(),
    "sh_spiller_get_stats": lambda w, s, _: w[s].stats(),
    "sh_spiller_get_upcoming": lambda w, s, *_: w[s].upcoming(),
    "sh_spiller_trim": lambda w, s, _: w[s].trim(),
    "sh_step_begin": lambda w, r, kind: w.begin("step", r, w[r].step(kind)),
    "sh_step_end": lambda w, r: w.end("step", r, w[r].step()),
    "sh_stream_create": lambda w, d, _: sh.Stream(w[d]),
    "sh_stream_forget": lambda w, r, s: w[r].forget(w.number(s)),
    "sh_telemetry_start": lambda w, r, s, path, _: w.telemetry(r, s, path),
    "sh_ticket_get_info": lambda w, s, t, _: w[t].info(),
    "sh_ticket_release": lambda w, s, t: w[t].release(),
    "sh_trace_start": lambda w, path, _: w.begin("trace", path, sh.trace(path)),
    "sh_trim": lambda w, r, *_: w[r].trim(),
    "sh_unpack": lambda w, packed, size, offset, bytes, _: sh.unpack(
        memoryview(MEMORY)[:size], bytearray(bytes), offset
    ),
    "sh_unregister_blocks": lambda w, r, b, _: w[r].unregister_blocks(w.all(b)),
    "sh_verify_block": lambda w, r, b, _: w.view(r, b).verify(),
    "sh_write_back": lambda w, r, b, _: w[r].write_back(b and w.all(b)),
}


def is_excluded(what):
    return any("python" in names.split() for names in what.get("not_in", ()))


def variants(row):
    """The row once for each value of its "each", which stands for "$"."""
    text = json.dumps(row)
    return [json.loads(text.replace('"$"', json.dumps(value))) for value in row.get("each", [None])]


ROWS = [one for row in TABLE["rows"] if not is_excluded(row) for one in variants(row)]


def make(world, call):
    made = CALLS[call[0]](world, *call[1:])
    if made is not None and isinstance(call[-1], str):
        world[call[-1]] = made


@pytest.fixture
def world():
    world = World()
    yield world
    for made in reversed(world.values()):
        if hasattr(made, "close"):
            made.close()
    world.clear()
    gc.collect()  # what is left, such as an allocation, keeps the device open


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_misuse(world, row):
    for call in TABLE["world"] + row.get("setup", []):
        make(world, call)
    for call in row["calls"]:
        if is_excluded(TABLE["functions"].get(call[0], {})):
            continue
        assert call[0] in CALLS, "the package has it, or table.json says why it has not"
        with pytest.raises(sh.Error) as caught:
            make(world, call)
            print("not refused:", call)
        assert caught.value.status.name == "ERROR_" + row["status"], (call, str(caught.value))
        for part in row.get("says", ()):
            assert str(part) in str(caught.value), call
    for call in row.get("undo", []) + row.get("works", TABLE["works"]):
        make(world, call)
