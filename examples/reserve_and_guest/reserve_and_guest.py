"""Two models share a device. One model reserves the memory that it streams with, and keeps its memory. It lets the
other model in as a guest for a time.

    reserve_and_guest.py [DEVICE]

The same program as reserve_and_guest.c, reserve_and_guest.cpp and reserve_and_guest.rs.
"""

import sys

import libstagehand as sh

LAYER_BYTES = 4 << 20
MODEL_LAYERS, MODEL_MOST = 12, 20 << 20
GUEST_LAYERS = 2
BUDGET = 40 << 20


def make(
    device: sh.Device, name: str, layers: int, first: int, max_bytes: int = 0
) -> tuple[sh.Runtime, list[sh.Block], list[bytes]]:
    """A model. All bytes of layer i have the value `first` + i."""
    weights = [bytes([first + i]) * LAYER_BYTES for i in range(layers)]
    runtime = sh.Runtime(device, name=name, max_bytes=max_bytes)
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


def refused(model: sh.Runtime, guest: sh.Runtime, bytes: int) -> bool:
    """True if there is no room for a guest that needs `bytes`."""
    try:
        with model.as_guest(guest, bytes=bytes):
            return False
    except sh.BudgetError:
        return True


def main(device_name: str = "host") -> None:
    with sh.Device(device_name, budget_bytes=BUDGET) as device:
        model, blocks, weights = make(device, "model", MODEL_LAYERS, 1, MODEL_MOST)
        guest, guests, guest_weights = make(device, "guest", GUEST_LAYERS, 101)
        step(model, blocks, weights)
        step(model, blocks, weights)
        expect(model.stats().ring_bytes > 0, "the model streams")

        # Reserve: no other model gets the memory that this model streams with.
        with model.reserve(priority=sh.ResidentPriority.PRIMARY):
            reserved = device.memory().reserved_bytes
            expect(0 < reserved <= MODEL_MOST, "it has reserved the memory that it streams with")
            expect(refused(model, guest, BUDGET - reserved // 2), "a guest that needs a part of that memory is refused")

            # Guest: the other model has all its layers on the device until the scope ends, and both models work.
            with model.as_guest(guest):
                step(guest, guests, guest_weights)
                step(model, blocks, weights)
                step(guest, guests, guest_weights)
                expect(
                    all(block.info().present_bytes == LAYER_BYTES for block in guests),
                    "a guest that fits has all its layers on the device",
                )
            expect(guest.stats().held_bytes == 0, "the guest has left and holds nothing")
        expect(device.memory().reserved_bytes == 0, "nothing is reserved")

        # Keep resident: no other model takes memory from this model.
        step(model, blocks, weights)
        held = model.stats().held_bytes
        with model.keep_resident():
            expect(refused(model, guest, BUDGET - held // 2), "a model that is kept resident gives nothing to a guest")
            expect(model.stats().held_bytes == held, "it holds as much as before")
        with model.as_guest(guest, bytes=BUDGET - held // 2):
            expect(model.stats().held_bytes < held, "afterwards it gives up a part of it")
            step(model, blocks, weights)
        step(model, blocks, weights)
        expect(device.memory().peak_bytes <= BUDGET, "the device never held more than its budget")
        guest.close()
        model.close()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit("usage: reserve_and_guest.py [DEVICE]")
    try:
        main(*sys.argv[1:])
    except (sh.Error, ValueError) as error:
        sys.exit(f"reserve_and_guest: {error}")
