// Measures the CUDA plugin's packing into host memory and the way back on cuda:0, beside copies of the same bytes. All
// bytes that come back are compared.
#include <cstring>

#include "core/device/tile_packing.h"
#include "gpu.h"

namespace {

using namespace stagehand;
using bench::kPart, bench::kParts;

constexpr uint64_t kPiece = uint64_t(64) << 20;  // bytes that a call is for

class PackingGpu : public bench::Gpu {
public:
    PackingGpu() {
        need(backend().range_reserve(device(), kMostBytes, 256, &memory_));
        host_ = pinned(kMostBytes);
        headers_ = pinned(codec::room_for_headers(kPart * kParts));
        need(backend().stream_create(device(), &other_));
        need(backend().event_create(device(), 0, &done_));
    }
    void write(const std::vector<uint8_t>& contents) {
        std::memcpy(host_, contents.data(), contents.size());
        need(backend().copy_to_device(device(), stream(), memory_, host_, contents.size()));
        need(backend().stream_synchronize(device(), stream()));
    }
    bool has(const std::vector<uint8_t>& contents) {
        need(backend().copy_to_host(device(), stream(), host_, memory_, contents.size()));
        need(backend().stream_synchronize(device(), stream()));
        return std::memcmp(host_, contents.data(), contents.size()) == 0;
    }
    void clear(uint64_t bytes) {
        need(backend().fill(device(), stream(), memory_, 0, bytes));
        need(backend().stream_synchronize(device(), stream()));
    }
    double copy_out(uint64_t bytes) {
        return timed([&] { need(backend().copy_to_host(device(), stream(), host_, memory_, bytes)); });
    }
    double copy_back(uint64_t bytes) {
        return timed([&] { need(backend().copy_to_device(device(), stream(), memory_, host_, bytes)); });
    }
    double pack(codec::FloatFormat format, uint64_t bytes) {
        return timed([&] { each_piece(format, bytes, backend().pack_tiles); });
    }
    double unpack(codec::FloatFormat format, uint64_t bytes) {
        return timed([&] { each_piece(format, bytes, backend().unpack_tiles); });
    }

private:
    static constexpr uint64_t kMostBytes = kPart * kParts * 4;

    uint8_t* pinned(uint64_t bytes) {
        constexpr uint64_t kPage = uint64_t(2) << 20;
        const uint64_t whole = (bytes + kPage - 1) / kPage * kPage;
        void* const memory = std::aligned_alloc(kPage, whole);
        if (memory) std::memset(memory, 0, whole);
        need(memory ? backend().host_register(device(), memory, whole) : SH_ERROR_OUT_OF_HOST_MEMORY);
        return static_cast<uint8_t*>(memory);
    }
    // Two streams take turns, as in the library.
    template <class Call>
    void each_piece(codec::FloatFormat format, uint64_t bytes, Call&& call) {
        need(backend().event_record(device(), done_, stream()));
        need(backend().stream_wait_event(device(), other_, done_));
        bool odd = false;
        for (uint64_t at = 0; at < bytes; at += kPiece, odd = !odd) {
            const uint64_t elements = std::min(kPiece, bytes - at) / codec::fields_of(format).bytes();
            const uint64_t tile = at / codec::bytes_of_tile(format);
            const sh_backend_tiles tiles =
                core::tiles_at(memory_ + at, {format, elements, host_ + at, headers_ + tile * codec::kTileAlignment});
            need(call(device(), odd ? other_ : stream(), &tiles));
        }
        need(backend().event_record(device(), done_, other_));
        need(backend().stream_wait_event(device(), stream(), done_));
    }

    uint64_t memory_ = 0;
    uint8_t *host_ = nullptr, *headers_ = nullptr;
    sh_stream other_ = 0;
    sh_backend_event done_ = 0;
};

}  // namespace

int main() {
    PackingGpu gpu;
    std::printf("format   GB/s of contents to the host: copied, packed    back: copied, packed\n");
    for (const codec::FloatFormat format : codec::test::kFormats) {
        const std::vector<uint8_t> contents = bench::weights_of(format);
        const uint64_t bytes = contents.size();
        gpu.write(contents);
        std::vector<double> out, packed, back, unpacked;
        for (int i = 0; i < 9; i++) {
            out.push_back(gpu.copy_out(bytes));
            back.push_back(gpu.copy_back(bytes));
            packed.push_back(gpu.pack(format, bytes));
            gpu.clear(bytes);
            unpacked.push_back(gpu.unpack(format, bytes));
        }
        if (!gpu.has(contents)) {
            std::fprintf(stderr, "other bytes have come back\n");
            return 1;
        }
        const auto rate = [&](std::vector<double>& ns) { return static_cast<double>(bytes) / bench::median(ns); };
        const double a = rate(out), b = rate(packed), c = rate(back), d = rate(unpacked);
        std::printf("%6d   %6.1f %6.1f (%.2f x)   %6.1f %6.1f (%.2f x)\n", static_cast<int>(format), a, b, b / a, c, d,
                    d / c);
        std::fflush(stdout);
    }
}
