// C++ owners for a device, its streams and its pinned memory. stagehand.hpp includes this file.
#ifndef STAGEHAND_DEVICE_HPP
#define STAGEHAND_DEVICE_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"

namespace stagehand {
inline namespace abi0 {

// An owner of one reference to a device.
class Device {
public:
    explicit Device(const std::string& name) { check(sh_device_open(name.c_str(), nullptr, &device_)); }
    Device(const std::string& name, const sh_device_options& options) {
        check(sh_device_open(name.c_str(), &options, &device_));
    }
    // Takes ownership of a reference.
    explicit Device(sh_device* device) noexcept : device_(device) {}
    Device(Device&& other) noexcept : device_(other.release()) {}
    Device& operator=(Device&& other) noexcept {
        if (this != &other) {
            sh_device_close(device_);
            device_ = other.release();
        }
        return *this;
    }
    ~Device() { sh_device_close(device_); }

    sh_device* get() const noexcept { return device_; }
    // Gives the reference to the caller, who closes it.
    sh_device* release() noexcept { return std::exchange(device_, nullptr); }

    sh_memory_info memory() const {
        auto info = sh_sized<sh_memory_info>();
        check(sh_device_get_memory(device_, &info));
        return info;
    }
    void set_budget(std::uint64_t bytes) { check(sh_device_set_budget(device_, bytes)); }
    sh_device_caps capabilities() const {
        auto caps = sh_sized<sh_device_caps>();
        check(sh_device_get_caps(device_, &caps));
        return caps;
    }
    std::uint64_t clock_ns() const {
        std::uint64_t now = 0;
        check(sh_device_get_clock(device_, &now));
        return now;
    }

    // Tags of allocations (occupancy.hpp). Without options all tags are meant.
    sh_occupancy_change pause(const sh_pause_options& options = SH_PAUSE_OPTIONS_INIT) {
        auto change = sh_sized<sh_occupancy_change>();
        check(sh_pause(device_, &options, &change));
        return change;
    }
    sh_occupancy_change resume(const sh_resume_options& options = SH_RESUME_OPTIONS_INIT) {
        auto change = sh_sized<sh_occupancy_change>();
        check(sh_resume(device_, &options, &change));
        return change;
    }
    // An empty set of tags pauses nothing here, but it means all tags in the C interface. `contents`: SH_CONTENTS_*.
    // `flags`: SH_OCCUPANCY_*.
    sh_occupancy_change pause(Span<const char* const> tags, std::uint32_t contents = SH_CONTENTS_DEFAULT,
                              std::uint32_t flags = 0) {
        sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
        options.tags = tags.data();
        options.tag_count = tags.size();
        options.contents = contents;
        options.flags = flags;
        return tags.empty() ? sh_sized<sh_occupancy_change>() : pause(options);
    }
    // An empty set of tags resumes nothing here, but it means all tags in the C interface. `flags`: SH_OCCUPANCY_*.
    sh_occupancy_change resume(Span<const char* const> tags, std::uint32_t flags = 0) {
        sh_resume_options options = SH_RESUME_OPTIONS_INIT;
        options.tags = tags.data();
        options.tag_count = tags.size();
        options.flags = flags;
        return tags.empty() ? sh_sized<sh_occupancy_change>() : resume(options);
    }
    sh_occupancy_info occupancy() const { return occupancy_of(nullptr); }
    sh_occupancy_info occupancy(const std::string& tag) const { return occupancy_of(tag.c_str()); }
    // Lists all tags. A tag that another thread adds meanwhile may be missing.
    std::vector<sh_occupancy_info> occupancies() const {
        std::uint64_t count = 0;
        check(sh_occupancy_list(device_, nullptr, 0, &count));
        std::vector<sh_occupancy_info> infos(std::size_t(count), sh_sized<sh_occupancy_info>());
        check(sh_occupancy_list(device_, infos.data(), infos.size(), &count));
        return infos;
    }
    // Copies contents of a released tag to host memory of `bytes` bytes.
    void read_released(std::uint64_t address, std::uint64_t bytes, void* contents) const {
        check(sh_occupancy_read(device_, address, bytes, contents));
    }
    // Returns the number of bytes of host memory that were freed.
    std::uint64_t trim_occupancy() {
        std::uint64_t bytes = 0;
        check(sh_occupancy_trim(device_, &bytes));
        return bytes;
    }

private:
    sh_occupancy_info occupancy_of(const char* tag) const {
        auto info = sh_sized<sh_occupancy_info>();
        check(sh_occupancy_get_info(device_, tag, &info));
        return info;
    }

    sh_device* device_ = nullptr;
};

// An owner of a stream from sh_stream_create(). Engines on a GPU pass their own streams to Runtime and do not need this
// class.
class Stream {
public:
    explicit Stream(const Device& device) : device_(device.get()) { check(sh_stream_create(device_, &stream_)); }
    Stream(Stream&& other) noexcept : device_(other.device_), stream_(other.release()) {}
    Stream& operator=(Stream&& other) noexcept {
        if (this != &other) {
            destroy();
            device_ = other.device_;
            stream_ = other.release();
        }
        return *this;
    }
    ~Stream() { destroy(); }

    sh_stream get() const noexcept { return stream_; }
    sh_stream release() noexcept { return std::exchange(stream_, SH_STREAM_HOST); }

    void synchronize() { check(sh_stream_synchronize(device_, stream_)); }
    void launch(sh_stream_fn function, void* user_data, std::int64_t busy_ns = 0) {
        check(sh_stream_launch(device_, stream_, function, user_data, busy_ns));
    }

private:
    void destroy() noexcept {
        if (stream_ != SH_STREAM_HOST) sh_stream_destroy(device_, stream_);
    }

    sh_device* device_;
    sh_stream stream_ = SH_STREAM_HOST;
};

// An owner of memory from sh_host_alloc().
class PinnedMemory {
public:
    PinnedMemory(const Device& device, std::uint64_t bytes) : device_(device.get()), bytes_(bytes) {
        check(sh_host_alloc(device_, bytes, &memory_, &pinned_));
    }
    PinnedMemory(PinnedMemory&& other) noexcept
        : device_(other.device_), bytes_(other.bytes_), pinned_(other.pinned_), memory_(other.release()) {}
    PinnedMemory& operator=(PinnedMemory&& other) noexcept {
        if (this != &other) {
            sh_host_free(device_, memory_);
            device_ = other.device_;
            bytes_ = other.bytes_;
            pinned_ = other.pinned_;
            memory_ = other.release();
        }
        return *this;
    }
    ~PinnedMemory() { sh_host_free(device_, memory_); }

    void* data() const noexcept { return memory_; }
    std::uint64_t size() const noexcept { return memory_ ? bytes_ : 0; }
    // Returns false if the system refused to pin the memory. The memory is usable all the same, but copies go through
    // the staging buffers.
    bool pinned() const noexcept { return pinned_ != 0; }
    void* release() noexcept { return std::exchange(memory_, nullptr); }

private:
    sh_device* device_;
    std::uint64_t bytes_;
    std::uint32_t pinned_ = 0;
    void* memory_ = nullptr;
};

}  // namespace abi0
}  // namespace stagehand

#endif
