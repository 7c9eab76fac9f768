"""Protects blocks of a model that streams. The blocks stay on the device as a whole when another model comes, and when
the library makes new plans.

    protect.py [DEVICE]

The same program as protect.c, protect.cpp and protect.rs.
"""

import sys

import libstagehand as sh

LAYERS, LAYER_BYTES = 12, 4 << 20
BUDGET = 24 << 20
PROTECTED = (0, 7)


def make(device: sh.Device, name: str, layers: int, first: int) -> tuple[sh.Runtime, list[sh.Block], list[bytes]]:
    """A model. All bytes of layer i have the value `first` + i."""
    weights = [bytes([first + i]) * LAYER_BYTES for i in range(layers)]
    runtime = sh.Runtime(device, name=name)
    return (
        runtime,
        runtime.register_blocks(sh.BlockDesc(layer, f"{name} {i}") for i, layer in enumerate(weights)),
        weights,
    )


def step(runtime: sh.Runtime, blocks: list[sh.Block], weights: list[bytes]) -> None:
    """One pass over a model. It compares every byte instead of computing."""
    with runtime.step():
        for block, layer in zip(blocks, weights):
            with runtime.acquire(block) as view:
                if view.read() != layer:
                    raise ValueError(f"{block.name}: its bytes are wrong")


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"this does not hold: {what}")
    print(what)


def stays(blocks: list[sh.Block]) -> bool:
    """True if the protected layers are on the device as a whole, in memory of their own."""
    infos = [blocks[i].info() for i in PROTECTED]
    return all(info.present_bytes == info.resident_bytes == LAYER_BYTES for info in infos)


def loads(blocks: list[sh.Block]) -> int:
    """The result grows if one of the protected layers is loaded."""
    return sum(blocks[i].info().serial for i in PROTECTED)


def main(device_name: str = "host") -> None:
    with sh.Device(device_name, budget_bytes=BUDGET) as device:
        model, blocks, weights = make(device, "model", LAYERS, 1)
        step(model, blocks, weights)
        step(model, blocks, weights)
        expect(model.stats().ring_bytes > 0, "the model streams")
        with model.protect([blocks[i] for i in PROTECTED]):
            model.plan()
            step(model, blocks, weights)
            expect(stays(blocks), "the protected layers stay on the device as a whole")
            before = loads(blocks)
            other, others, other_weights = make(device, "other", LAYERS, 101)
            for _ in range(2):
                step(other, others, other_weights)
                step(model, blocks, weights)
            expect(stays(blocks), "they stay when another model comes")
            device.set_budget(BUDGET * 3 // 4)
            step(other, others, other_weights)
            step(model, blocks, weights)
            expect(stays(blocks), "they stay when there is less memory")
            expect(loads(blocks) == before, "none of them was loaded again")
            expect(device.memory().peak_bytes <= BUDGET, "the device never held more than its budget")
            other.close()
        expect(
            all(block.info().protections == 0 for block in blocks), "without protection they are layers like the others"
        )
        model.close()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit("usage: protect.py [DEVICE]")
    try:
        main(*sys.argv[1:])
    except (sh.Error, ValueError) as error:
        sys.exit(f"protect: {error}")
