#include "sources.h"

#include <cstring>
#include <stdexcept>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine.h"

namespace stagehand::test {

std::string name_of(Origin origin) {
    switch (origin) {
        case Origin::pinned:
            return "pinned";
        case Origin::pageable:
            return "pageable";
        case Origin::mapped:
            return "mapped";
        case Origin::file:
            return "file";
        case Origin::fill:
            return "fill";
    }
    return "?";
}

std::vector<uint8_t> contents_of(uint64_t seed, uint64_t version, uint64_t bytes) {
    std::vector<uint8_t> result(bytes);
    uint64_t state = seed * 0x9e3779b97f4a7c15u + version * 0xd1342543de82ef95u + 1;
    const auto next = [&state] {
        uint64_t word = (state += 0x9e3779b97f4a7c15u);
        word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
        word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
        return word ^ (word >> 31);
    };
    uint64_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        const uint64_t word = next();
        std::memcpy(result.data() + i, &word, 8);
    }
    const uint64_t last = next();
    std::memcpy(result.data() + i, &last, bytes - i);
    return result;
}

sh_segment memory_segment(const void* memory, uint64_t bytes, uint32_t format) {
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.pointer = memory;
    segment.bytes = bytes;
    segment.format = format;
    return segment;
}

sh_segment fill_segment(sh_fill_fn fill, void* user_data, uint64_t bytes) {
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_FILL;
    segment.fill = fill;
    segment.user_data = user_data;
    segment.bytes = bytes;
    return segment;
}

Source::Source(sh_device* device, Origin origin, std::vector<uint8_t> bytes)
    : device_(device), origin_(origin), bytes_(bytes.size()) {
    void* memory = nullptr;
    switch (origin) {
        case Origin::pinned:
            if (sh_host_alloc(device, bytes_, &memory, nullptr) != SH_OK)
                throw std::runtime_error("pinned memory: " + why());
            break;
        case Origin::pageable:
        case Origin::fill:
            memory = new uint8_t[bytes_];
            break;
        case Origin::mapped:
        case Origin::file: {
            char path[] = "stagehand-test-XXXXXX";
            descriptor_ = mkostemp(path, O_CLOEXEC);
            if (descriptor_ < 0 || unlink(path) != 0 || ftruncate(descriptor_, static_cast<off_t>(bytes_)) != 0)
                throw std::runtime_error("no temporary file in the working directory");
            if (origin == Origin::mapped) {
                memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
                if (memory == MAP_FAILED) throw std::runtime_error("a file cannot be mapped");
            }
            break;
        }
    }
    memory_ = static_cast<uint8_t*>(memory);
    write(bytes);
}

Source::~Source() {
    switch (origin_) {
        case Origin::pinned:
            sh_host_free(device_, memory_);
            break;
        case Origin::pageable:
        case Origin::fill:
            delete[] memory_;
            break;
        case Origin::mapped:
            munmap(memory_, bytes_);
            [[fallthrough]];
        case Origin::file:
            close(descriptor_);
    }
}

int32_t Source::fill(void* buffer, uint64_t offset, uint64_t bytes, void* user_data) {
    const Source& self = *static_cast<const Source*>(user_data);
    if (const int32_t result = self.fill_result.load()) return result;
    std::memcpy(buffer, self.memory_ + offset, bytes);
    return 0;
}

sh_segment Source::segment(uint64_t offset) {
    sh_segment segment = SH_SEGMENT_INIT;
    segment.offset = offset;
    segment.bytes = bytes_;
    switch (origin_) {
        case Origin::pinned:
        case Origin::pageable:
            segment.kind = SH_SOURCE_POINTER;
            break;
        case Origin::mapped:
            segment.kind = SH_SOURCE_MAPPED;
            break;
        case Origin::file:
            segment.kind = SH_SOURCE_FILE;
            break;
        case Origin::fill:
            segment.kind = SH_SOURCE_FILL;
            break;
    }
    if (origin_ == Origin::file) {
        segment.file = descriptor_;
    } else if (origin_ == Origin::fill) {
        segment.fill = fill;
        segment.user_data = this;
    } else {
        segment.pointer = memory_;
    }
    return segment;
}

void Source::write(const std::vector<uint8_t>& bytes) {
    if (memory_)
        std::memcpy(memory_, bytes.data(), bytes_);
    else if (pwrite(descriptor_, bytes.data(), bytes_, 0) != static_cast<ssize_t>(bytes_))
        throw std::runtime_error("a file cannot be written");
}

std::vector<uint8_t> Source::read() const {
    std::vector<uint8_t> bytes(bytes_);
    if (memory_)
        std::memcpy(bytes.data(), memory_, bytes_);
    else if (pread(descriptor_, bytes.data(), bytes_, 0) != static_cast<ssize_t>(bytes_))
        throw std::runtime_error("a file cannot be read");
    return bytes;
}

bool Source::shrink(uint64_t bytes) { return ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0; }

}  // namespace stagehand::test
