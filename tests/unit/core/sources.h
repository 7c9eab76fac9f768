// Sources of blocks: memory, files and callbacks whose bytes tell which block and version they belong to.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

namespace stagehand::test {

enum class Origin { pinned, pageable, mapped, file, fill };
std::string name_of(Origin origin);
constexpr Origin kOrigins[] = {Origin::pinned, Origin::pageable, Origin::mapped, Origin::file, Origin::fill};

// Returns the bytes of one version of a block. All blocks, versions and places in a block differ.
std::vector<uint8_t> contents_of(uint64_t seed, uint64_t version, uint64_t bytes);

sh_segment memory_segment(const void* memory, uint64_t bytes, uint32_t format = 0);
sh_segment fill_segment(sh_fill_fn fill, void* user_data, uint64_t bytes);

// A source of any kind, and the bytes that it holds.
class Source {
public:
    Source(sh_device* device, Origin origin, std::vector<uint8_t> bytes);
    ~Source();
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;

    sh_segment segment(uint64_t offset = 0);  // of the whole source, at this offset of a block
    void write(const std::vector<uint8_t>& bytes);
    std::vector<uint8_t> read() const;
    uint8_t* memory() const { return memory_; }  // null for a file
    bool shrink(uint64_t bytes);                 // of a file or mapped file
    std::atomic<int32_t> fill_result{0};         // what a fill callback answers

private:
    static int32_t fill(void* buffer, uint64_t offset, uint64_t bytes, void* user_data);

    sh_device* const device_;
    const Origin origin_;
    const uint64_t bytes_;
    uint8_t* memory_ = nullptr;
    int descriptor_ = -1;
};

}  // namespace stagehand::test
