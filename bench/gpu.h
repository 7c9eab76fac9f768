// A GPU without the library: the functions of the CUDA plugin.
#pragma once

#include "../tests/unit/codec/weights.h"
#include "measure.h"
#include "plugins/backends.h"

namespace bench {

constexpr uint64_t kPart = uint64_t(4) << 20, kParts = 64;  // elements

// Weights that repeat. Those of 8 bits are scaled to the range of their type, as models have them.
inline std::vector<uint8_t> weights_of(stagehand::codec::FloatFormat format) {
    using namespace stagehand::codec;
    const auto part = test::weights(format, kPart, 1, fields_of(format).bytes() == 1 ? 100.0f : 0.02f);
    std::vector<uint8_t> contents;
    for (uint64_t i = 0; i < kParts; i++) contents.insert(contents.end(), part.begin(), part.end());
    return contents;
}

// Ends the benchmark if there is no GPU.
class Gpu {
public:
    Gpu() {
        const stagehand::Status found = stagehand::plugins::find_backend("cuda", nullptr, &backend_, nullptr);
        if (!found.ok()) skip(found.text());
        sh_backend_device_info info = {};
        info.struct_size = sizeof info;
        if (backend_->device_open(0, "map_pages=0", &device_, &info) != SH_OK) skip(backend_->last_error());
        need(backend_->stream_create(device_, &stream_));
        for (sh_backend_event* event : {&begin_, &end_}) need(backend_->event_create(device_, 1, event));
    }
    const sh_backend& backend() const { return *backend_; }
    sh_backend_device* device() const { return device_; }
    sh_stream stream() const { return stream_; }

    // Returns the nanoseconds of what `work` queues on the stream.
    template <class Work>
    double timed(Work&& work) {
        need(backend_->event_record(device_, begin_, stream_));
        work();
        need(backend_->event_record(device_, end_, stream_));
        need(backend_->stream_synchronize(device_, stream_));
        int64_t ns = 0;
        need(backend_->event_elapsed(device_, begin_, end_, &ns));
        return static_cast<double>(ns);
    }
    // Ends the benchmark with the driver's text if a call failed.
    void need(sh_status status) const {
        if (status >= 0) return;
        std::fprintf(stderr, "%s\n", backend_->last_error());
        std::exit(1);
    }

private:
    [[noreturn]] static void skip(const char* why) {
        std::printf("skipped: %s\n", why);
        std::exit(0);
    }

    const sh_backend* backend_ = nullptr;
    sh_backend_device* device_ = nullptr;
    sh_stream stream_ = 0;
    sh_backend_event begin_ = 0, end_ = 0;
};

}  // namespace bench
