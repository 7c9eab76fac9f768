// Graph: the record of a step that the engine captured into a graph of its driver.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include <stagehand/backend.h>

#include "backend/backend_device.h"
#include "core/memory/block.h"
#include "transfer/carrier/carrier.h"
#include "transfer/unpack/unpacker.h"

namespace stagehand::core {

// A carrier, an unpacker and events that only one capture uses. They live as long as its graph.
class CaptureObjects {
public:
    explicit CaptureObjects(BackendDevice& device)
        : device_(&device),
          carrier_(std::make_unique<transfer::StraightCarrier>(device)),
          unpacker_(std::make_unique<transfer::Unpacker>(device, *carrier_)) {}
    ~CaptureObjects();
    CaptureObjects(CaptureObjects&& other) noexcept;
    CaptureObjects& operator=(CaptureObjects&&) = delete;

    Status open(transfer::Lanes& lanes) { return carrier_->open(lanes); }
    sh_stream stream() const { return carrier_->stream(); }  // of the capture's copies
    transfer::Carrier& carrier() { return *carrier_; }
    transfer::Unpacker& unpacker() { return *unpacker_; }
    // Creates an event that nobody else records.
    Status event(sh_backend_event* out);

private:
    BackendDevice* device_;
    std::vector<sh_backend_event> events_;
    std::unique_ptr<transfer::Carrier> carrier_;
    std::unique_ptr<transfer::Unpacker> unpacker_;
};

struct Graph {
    explicit Graph(CaptureObjects made) : objects(std::move(made)) {}

    uint64_t id = 0;
    bool stale = false;           // the plan has changed since the capture
    std::vector<uint32_t> units;  // the units that the graph uses, ascending
    // For each page of the ring, the unit whose contents the page holds after the graph has run. kNone: no unit.
    std::vector<uint32_t> ring;
    bool uses(uint32_t unit) const { return std::binary_search(units.begin(), units.end(), unit); }

    uint64_t unpack_memory = 0;  // the address of the memory in which it unpacks weights, or 0

    uint64_t loads = 0, pieces = 0, bytes = 0;  // of one launch
    sh_backend_event done = 0;                  // not 0: recorded after the last launch
    CaptureObjects objects;
};

}  // namespace stagehand::core
