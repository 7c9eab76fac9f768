// Measures the CUDA plugin's unpacking on cuda:0. Weights of 256 Mi elements are unpacked by calls for so many chunks.
#include "codec/frame.h"
#include "gpu.h"

namespace {

using namespace stagehand;
using bench::kPart, bench::kParts;

class UnpackingGpu : public bench::Gpu {
public:
    UnpackingGpu() { need(backend().range_reserve(device(), kMostBytes * 2, 256, &memory_)); }
    // Returns the nanoseconds of unpacking the frame with calls for so many chunks.
    double run(const codec::Frame& frame, uint64_t at_once) {
        sh_backend_packed packed = {};
        packed.struct_size = sizeof packed;
        packed.format = static_cast<uint32_t>(frame.format());
        const uint64_t element = codec::fields_of(frame.format()).bytes();
        const uint64_t elements = frame.contents_bytes() / element;
        const auto* const begin = frame.chunk(0).data();
        return timed([&] {
            for (uint64_t chunk = 0; chunk < frame.chunks(); chunk += packed.chunks) {
                const uint64_t done = chunk * SH_BACKEND_CHUNK_ELEMENTS;
                packed.chunks = static_cast<uint32_t>(std::min(at_once, frame.chunks() - chunk));
                packed.elements =
                    std::min<uint64_t>(elements - done, packed.chunks * uint64_t(SH_BACKEND_CHUNK_ELEMENTS));
                packed.from = memory_ + static_cast<uint64_t>(frame.chunk(chunk).data() - begin);
                packed.to = memory_ + kMostBytes + done * element;
                for (uint32_t i = 0; i < packed.chunks; i++)
                    packed.places[i + 1] =
                        packed.places[i] + static_cast<uint32_t>(frame.chunk(chunk + i).size() / codec::kTileAlignment);
                need(backend().unpack(device(), stream(), &packed));
            }
        });
    }
    void write(const codec::Frame& frame) {
        for (uint64_t chunk = 0, at = memory_; chunk < frame.chunks(); at += frame.chunk(chunk++).size())
            need(
                backend().copy_to_device(device(), stream(), at, frame.chunk(chunk).data(), frame.chunk(chunk).size()));
        need(backend().stream_synchronize(device(), stream()));
    }

private:
    static constexpr uint64_t kMostBytes = kPart * kParts * 9 / 2;

    uint64_t memory_ = 0;
};

}  // namespace

int main() {
    UnpackingGpu gpu;
    std::printf("format  ratio   GB/s of contents: 128 chunks at once, 32, 8, 4\n");
    for (const codec::FloatFormat format : codec::test::kFormats) {
        const std::vector<uint8_t> contents = bench::weights_of(format);
        std::vector<uint8_t> bytes;
        codec::Frame frame;
        CHECK(codec::pack_frame(format, contents.data(), contents.size(), 16, &bytes).code());
        CHECK(codec::Frame::open(bytes, &frame).code());
        gpu.write(frame);
        std::printf("%6d  %.4f ", static_cast<int>(format),
                    static_cast<double>(bytes.size()) / static_cast<double>(contents.size()));
        for (const uint64_t at_once : {128, 32, 8, 4}) {
            std::vector<double> ns;
            for (int i = 0; i < 7; i++) ns.push_back(gpu.run(frame, at_once));
            std::printf(" %8.1f", static_cast<double>(contents.size()) / bench::median(ns));
        }
        std::printf("\n");
        std::fflush(stdout);
    }
}
