// Code that the tests of readers share.
#pragma once

#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "temporary_file.h"
#include "transfer/source/reader.h"

namespace stagehand::transfer::test {

inline int32_t fill_fails(void*, uint64_t, uint64_t, void*) { return 42; }

inline bool has(const Status& status, const char* text) {
    return std::string(status.text()).find(text) != std::string::npos;
}

// Reads random ranges of a source in random batches, and compares them with the contents of the source.
inline void expect_same(Reader& reader, const Source& source, const std::vector<char>& bytes, uint64_t first,
                        uint32_t seed) {
    std::mt19937_64 random(seed);
    for (int round = 0; round < 20; round++) {
        std::vector<ReadRequest> requests;
        std::vector<char> buffer(source.bytes + 64, 'x');
        uint64_t position = random() % 64;
        for (size_t count = 1 + random() % 5; count > 0; count--) {
            const uint64_t offset = random() % source.bytes;
            const uint64_t most = std::min(source.bytes - offset, buffer.size() - position);
            const uint64_t length =
                most == 0 ? 0 : random() % (random() % 2 ? most : std::min<uint64_t>(most, 9000)) + 1;
            requests.push_back({&source, offset, buffer.data() + position, length});
            position += length;
        }
        const Status status = reader.read(requests);
        ASSERT_TRUE(status.ok()) << status.text();
        for (const ReadRequest& request : requests)
            ASSERT_EQ(std::memcmp(request.to, bytes.data() + first + request.offset, request.bytes), 0);
        ASSERT_EQ(buffer.at(position), 'x');  // nothing is written past the end
    }
}

// Shrinks a file to sizes below 1 MiB and lets it grow again, all the time.
class Shrinker {
public:
    explicit Shrinker(TemporaryFile& file) {
        (void)file.resize(0);
        thread_ = std::thread([this, &file] {
            for (uint64_t size = 0; !stop_; size = (size + 123457) % (1 << 20)) (void)file.resize(size);
        });
    }
    ~Shrinker() {
        stop_ = true;
        thread_.join();
    }

private:
    std::atomic<bool> stop_ = false;
    std::thread thread_;
};

}  // namespace stagehand::transfer::test
