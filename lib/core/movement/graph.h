// Graph: what is known of a step that the engine captured into a graph of its driver.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <stagehand/backend.h>

#include "backend/backend_device.h"
#include "core/memory/block.h"

namespace stagehand::core {

// Streams and events that belong to a capture alone, and live as long as its graph.
class CaptureObjects {
public:
    explicit CaptureObjects(BackendDevice& device) : device_(&device) {}
    ~CaptureObjects();
    CaptureObjects(CaptureObjects&& other) noexcept;
    CaptureObjects& operator=(CaptureObjects&&) = delete;

    Status open();   // makes the copy stream
    sh_stream copy_stream() const { return copy_stream_; }
    // An event that nobody else records.
    Status event(sh_backend_event* out);

private:
    BackendDevice* device_;
    sh_stream copy_stream_ = SH_STREAM_HOST;
    std::vector<sh_backend_event> events_;
};

struct Graph {
    explicit Graph(CaptureObjects made) : objects(std::move(made)) {}

    uint64_t id = 0;
    bool stale = false;                // the plan has changed since
    std::vector<uint32_t> units;       // that it uses, ascending
    std::vector<uint32_t> ring;        // whose contents each page of the ring holds when it has run; kNone: nobody's
    bool uses(uint32_t unit) const { return std::binary_search(units.begin(), units.end(), unit); }

    uint64_t loads = 0, pieces = 0, bytes = 0;   // of one launch
    sh_backend_event done = 0;         // not 0: recorded after the last launch
    CaptureObjects objects;
};

}  // namespace stagehand::core
