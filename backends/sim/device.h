// Device: an open simulated device. A stream is the time until which it is busy, and an event is the time at which it
// happened.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include <stagehand/backend.h>

#include "sim/link.h"
#include "sim/settings.h"
#include "support/page_table.h"
#include "support/pinned_ranges.h"

namespace stagehand::sim {

// Thread-safe with one lock, because no call takes long. The clock is the time of the simulated host. A call advances
// it by the cost of the call, and a wait advances it to the end of the wait. Nothing else advances it.
class Device {
public:
    explicit Device(const Settings& settings);

    void describe(sh_backend_device_info* out) const;
    uint64_t now_ns() const;
    void memory_info(uint64_t* out_free, uint64_t* out_total) const;

    sh_status pages_create(uint64_t page_bytes, uint64_t count, sh_backend_page* out_pages);
    sh_status pages_destroy(uint64_t page_bytes, uint64_t count, const sh_backend_page* pages);
    sh_status range_reserve(uint64_t bytes, uint64_t alignment, uint64_t* out_address);
    sh_status range_free(uint64_t address, uint64_t bytes);
    sh_status pages_map(uint64_t address, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages);
    sh_status pages_unmap(uint64_t address, uint64_t page_bytes, uint64_t count);

    support::PinnedRanges& pinned() { return pinned_; }

    sh_status stream_create(sh_stream* out_stream);
    sh_status stream_destroy(sh_stream stream);
    sh_status stream_synchronize(sh_stream stream);
    // Waits for all streams.
    void synchronize();
    sh_status stream_wait_event(sh_stream stream, sh_backend_event event);
    sh_status stream_launch(sh_stream stream, void (*fn)(void*), void* user_data, int64_t busy_ns);

    sh_status event_create(bool timing, sh_backend_event* out_event);
    sh_status event_destroy(sh_backend_event event);
    sh_status event_record(sh_backend_event event, sh_stream stream);
    sh_status event_query(sh_backend_event event, uint32_t* out_done);
    sh_status event_synchronize(sh_backend_event event);
    sh_status event_elapsed(sh_backend_event begin, sh_backend_event end, int64_t* out_ns);

    sh_status copy(sh_stream stream, Direction direction, uint64_t address, uint64_t bytes);
    sh_status copy_on_device(sh_stream stream, uint64_t to, uint64_t from, uint64_t bytes);
    sh_status fill(sh_stream stream, uint64_t to, uint64_t bytes);
    sh_status unpack(sh_stream stream, const sh_backend_packed& packed);

private:
    struct Stream {
        uint64_t busy_until_ns = 0;
    };
    struct Event {
        bool timing = false;
        bool recorded = false;
        uint64_t at_ns = 0;
    };

    sh_status find_stream(sh_stream handle, Stream** out);
    sh_status find_event(sh_backend_event handle, Event** out);
    // Returns the time at which a command that is queued now could start. Queuing advances the clock.
    uint64_t ready_ns(const Stream& stream);

    const Settings settings_;
    support::PinnedRanges pinned_{0};
    mutable std::mutex mutex_;
    support::PageTable table_;
    Links links_;
    uint64_t now_ns_ = 0;
    uint64_t used_bytes_ = 0;
    uint64_t next_page_ = 1;
    std::unordered_map<uint64_t, Stream> streams_;
    std::unordered_map<uint64_t, Event> events_;
};

}  // namespace stagehand::sim
