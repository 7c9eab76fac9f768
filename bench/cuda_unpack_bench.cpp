// Measures the program that unpacks weights on cuda:0: on the whole device, and on a few groups of threads.
#include "../tests/gpu/unpack_program.h"
#include "../tests/unit/codec/weights.h"
#include "measure.h"

namespace {

using namespace stagehand;

constexpr uint64_t kPart = uint64_t(4) << 20, kParts = 64;  // elements

double gigabytes_per_second(test::UnpackProgram& program, codec::FloatFormat format, uint64_t bytes, uint32_t groups) {
    const auto tiles = static_cast<uint32_t>(kPart * kParts / 8192);
    std::vector<double> ms;
    for (int i = 0; i < 7; i++) ms.push_back(program.run(format, tiles, groups));
    return static_cast<double>(bytes) / bench::median(ms) / 1e6;
}

}  // namespace

int main() try {
    test::UnpackProgram program(kPart * kParts * 4);
    std::printf("format               ratio   GB/s of contents: all groups of threads, 132, 64, 32, 16\n");
    for (const codec::FloatFormat format : codec::test::kFormats) {
        const std::vector<uint8_t> part =
            codec::test::weights(format, kPart, 1, codec::fields_of(format).bytes() == 1 ? 100.0f : 0.02f);
        std::vector<uint8_t> contents, frame;
        for (uint64_t i = 0; i < kParts; i++) contents.insert(contents.end(), part.begin(), part.end());
        CHECK(codec::pack_frame(format, contents.data(), contents.size(), 16, &frame).code());
        program.write(frame, contents.size());
        std::printf("%-18s %7.4f ", test::program_for(format),
                    static_cast<double>(frame.size()) / static_cast<double>(contents.size()));
        for (const uint32_t groups : {UINT32_MAX, 132u, 64u, 32u, 16u})
            std::printf(" %8.1f", gigabytes_per_second(program, format, contents.size(), groups));
        std::printf("\n");
        std::fflush(stdout);
    }
} catch (const std::exception& problem) {
    std::printf("skipped: %s\n", problem.what());
}
