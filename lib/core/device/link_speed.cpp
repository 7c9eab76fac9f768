// The measurement of the link from host to device. It is done once, as the link is used: with copies that are queued
// one behind the other on a stream, as a lane takes them, and large enough to hide the cost of a command.
#include <algorithm>

#include "backend/timed_span.h"
#include "base/once_more.h"
#include "core/device/page_loan.h"
#include "core/device/pool_memory.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kLargest = 64 << 20;
constexpr uint64_t kSmallestCopy = 4 << 20;  // if there is the memory for it
constexpr uint64_t kInFlight = 4;
constexpr int kRepeats = 3;
constexpr double kAssumedBytesPerNs = 16;  // PCIe 4.0 with half its lanes: never far from the truth

// The resources that the measurement needs on the device and on the host. They are always given back.
struct Probe {
    Device& device;
    PageLoan& loan;
    PoolMemory memory{device.backend(), device.pool()};
    sh_stream stream = SH_STREAM_HOST;
    TimedSpan span{device.backend()};
    transfer::PinnedMemory host{};

    ~Probe() {
        BackendDevice& backend = device.backend();
        // Nothing can be done about failures here. The backend reports them when it is closed.
        if (stream != SH_STREAM_HOST) {
            if (!once_more([&] { return backend.stream_synchronize(stream); }).ok()) {
                host.abandon();  // the copy may still be under way, so its memory must not be freed
                memory.abandon();
                loan.abandon();
                return;
            }
            (void)once_more([&] { return backend.stream_destroy(stream); }).ok();
        }
        (void)memory.free().ok();
    }

    Status open() {
        BackendDevice& backend = device.backend();
        SH_TRY(memory.take(loan.pages()));
        SH_TRY(transfer::PinnedMemory::allocate(backend, memory.bytes(), &host));
        SH_TRY(backend.stream_create(&stream));
        return span.open();
    }

    // Copies over the same bytes again where there is no memory for all copies side by side.
    Status copy(uint64_t copies, uint64_t bytes, int64_t* ns) {
        BackendDevice& backend = device.backend();
        SH_TRY(span.begin(stream));
        for (uint64_t i = 0; i < copies; i++) {
            const uint64_t from = i * bytes % (host.bytes() / bytes * bytes);
            SH_TRY(
                backend.copy_to_device(stream, memory.address() + from, static_cast<char*>(host.data()) + from, bytes));
        }
        SH_TRY(span.end(stream));
        SH_TRY(span.wait());
        return span.read(ns);
    }

    Status best(uint64_t copies, uint64_t bytes, int64_t* out_ns) {
        for (int i = 0; i <= kRepeats; i++) {  // the first copy warms up
            int64_t ns = 0;
            SH_TRY(copy(copies, bytes, &ns));
            if (i && ns > 0 && (!*out_ns || ns < *out_ns)) *out_ns = ns;
        }
        return Status();
    }
};

}  // namespace

Status Device::measure_link(uint64_t most_pages, double* bytes_per_ns) {
    PageLoan loan(*this, 1, std::min(most_pages, std::max<uint64_t>(1, kLargest / page_bytes())));
    if (!loan.pages()) return Status(SH_ERROR_OUT_OF_DEVICE_MEMORY);
    Probe probe{*this, loan};
    SH_TRY(probe.open());
    const uint64_t room = probe.memory.bytes(), alone = std::min(room, kSmallestCopy);
    const uint64_t bytes = std::max(alone, room / kInFlight);
    int64_t best = 0, best_alone = 0;
    SH_TRY(probe.best(kInFlight, bytes, &best));
    SH_TRY(probe.best(1, alone, &best_alone));
    *bytes_per_ns = best ? static_cast<double>(kInFlight * bytes) / static_cast<double>(best) : 1.0;
    const double more = static_cast<double>(best_alone) - static_cast<double>(alone) / *bytes_per_ns;
    // More than a fifth is noise.
    lone_copy_ns_ = static_cast<uint64_t>(std::clamp(more, 0.0, 0.2 * static_cast<double>(best_alone)));
    return Status();
}

Status Device::link(uint64_t most_pages, double* bytes_per_ns) {
    std::lock_guard lock(mutex_);  // only one caller measures at a time
    *bytes_per_ns = lanes_.rate(transfer::Direction::to_device);
    if (*bytes_per_ns > 0) return Status();
    Status status = measure_link(most_pages, bytes_per_ns);
    if (status.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY) {
        *bytes_per_ns = kAssumedBytesPerNs;  // there is no memory to measure with now
        return Status();
    }
    SH_TRY(status);
    set_link(*bytes_per_ns);
    return Status();
}

}  // namespace stagehand::core
