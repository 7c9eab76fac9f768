// The GPU's program that hashes contents, instruction by instruction on the host: it computes the hash that
// backends/support/content_hash.h defines.
#include <random>

#include <gtest/gtest.h>

#include "content_hash_ptx.h"
#include "ptx_machine.h"
#include "support/content_hash.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kRow = 4096;

// Eight rows are one round of the program's loop. The sizes take every way out of it.
TEST(ContentHashProgram, computes_the_hash) {
    constexpr uint64_t kRows[] = {1, 2, 3, 7, 8, 9, 10, 15, 16, 21};
    std::mt19937_64 random(7);
    std::vector<uint64_t> contents(21 * kRow / 8 + 2);
    for (uint64_t& word : contents) word = random();
    const uint64_t begin = (reinterpret_cast<uintptr_t>(contents.data()) + 15) / 16 * 16;
    std::vector<sh_backend_range> ranges;
    for (const uint64_t rows : kRows) ranges.push_back({begin, rows * kRow});
    std::vector<sh_backend_digest> digests(ranges.size());
    PtxMachine machine(kContentHashProgram);
    for (uint32_t i = 0; i < ranges.size(); i++) {
        machine.run(support::kHashLanes, i,
                    {reinterpret_cast<uintptr_t>(ranges.data()), reinterpret_cast<uintptr_t>(digests.data())});
        const sh_backend_digest wanted = support::content_hash(reinterpret_cast<const void*>(begin), ranges[i].bytes);
        EXPECT_EQ(digests[i].words[0], wanted.words[0]) << kRows[i] << " rows";
        EXPECT_EQ(digests[i].words[1], wanted.words[1]) << kRows[i] << " rows";
    }
}

// One bit, anywhere, and the order of what is there.
TEST(ContentHash, tells_contents_apart) {
    std::vector<uint64_t> words(3 * kRow / 8, 0);
    const auto hash = [&] { return support::content_hash(words.data(), words.size() * 8); };
    const auto differs = [](const sh_backend_digest& a, const sh_backend_digest& b) {
        return a.words[0] != b.words[0] && a.words[1] != b.words[1];
    };
    const sh_backend_digest zero = hash();
    EXPECT_TRUE(differs(zero, support::content_hash(words.data(), 2 * kRow))) << "fewer zeros";
    for (const size_t at : {size_t(0), size_t(1), size_t(511), size_t(512), words.size() - 1})
        for (const int bit : {0, 31, 63}) {
            words[at] = uint64_t(1) << bit;
            EXPECT_TRUE(differs(zero, hash())) << "bit " << bit << " of word " << at;
            words[at] = 0;
        }
    words[2] = 1;
    const sh_backend_digest one = hash();
    words[2] = 0;
    words[2 + kRow / 8] = 1;
    EXPECT_TRUE(differs(one, hash())) << "in another row";
    words[2 + kRow / 8] = 0;
    words[4] = 1;
    EXPECT_TRUE(differs(one, hash())) << "in another lane";
}

}  // namespace
}  // namespace stagehand::test
