// TemporaryFile: a file of random bytes in the working directory, which is on a real file system. The file is removed
// with the object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace stagehand::transfer::test {

inline std::vector<char> random_bytes(uint64_t count, uint32_t seed) {
    std::vector<char> bytes(count);
    std::mt19937_64 random(seed);
    for (uint64_t i = 0; i < count; i += 8) {
        const uint64_t word = random();
        for (uint64_t k = 0; k < 8 && i + k < count; k++) bytes[i + k] = static_cast<char>(word >> (8 * k));
    }
    return bytes;
}

class TemporaryFile {
public:
    explicit TemporaryFile(uint64_t count, uint32_t seed = 1) : bytes_(random_bytes(count, seed)) {
        descriptor_ = mkostemp(path_.data(), O_CLOEXEC);
        if (descriptor_ < 0) throw std::runtime_error("no temporary file in the working directory");
        for (uint64_t done = 0; done < count;) {
            const ssize_t written = pwrite(descriptor_, bytes_.data() + done, count - done, static_cast<off_t>(done));
            if (written <= 0) throw std::runtime_error("a temporary file cannot be written");
            done += static_cast<uint64_t>(written);
        }
        fsync(descriptor_);
    }
    ~TemporaryFile() {
        close(descriptor_);
        unlink(path_.c_str());
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;

    int descriptor() const { return descriptor_; }
    const std::string& path() const { return path_; }
    const std::vector<char>& bytes() const { return bytes_; }
    bool resize(uint64_t count) { return ftruncate(descriptor_, static_cast<off_t>(count)) == 0; }
    // Drops the file from the page cache. Returns true if the kernel accepted the request.
    bool forget() { return fsync(descriptor_) == 0 && posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED) == 0; }
    // Returns how many pages of the range are in the page cache. This does not read the file, because a read may make
    // the kernel load the pages.
    size_t cached_pages(uint64_t offset, uint64_t bytes) const {
        void* const at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor_, static_cast<off_t>(offset));
        if (at == MAP_FAILED) throw std::runtime_error("a file cannot be mapped");
        std::vector<unsigned char> pages((bytes + 4095) / 4096);
        mincore(at, bytes, pages.data());
        munmap(at, bytes);
        return static_cast<size_t>(
            std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
    }

private:
    std::string path_ = "stagehand-test-XXXXXX";
    int descriptor_ = -1;
    std::vector<char> bytes_;
};

class Mapping {
public:
    Mapping(int descriptor, uint64_t bytes) : bytes_(bytes) {
        void* const at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
        if (at == MAP_FAILED) throw std::runtime_error("a file cannot be mapped");
        data_ = static_cast<char*>(at);
    }
    ~Mapping() { munmap(data_, bytes_); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    char* data() const { return data_; }

private:
    char* data_ = nullptr;
    uint64_t bytes_ = 0;
};

}  // namespace stagehand::transfer::test
