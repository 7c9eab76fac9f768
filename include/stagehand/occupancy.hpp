// A C++ owner for device memory that leaves the device and comes back. stagehand.hpp includes this file. The methods of
// Device pause and resume the memory.
#ifndef STAGEHAND_OCCUPANCY_HPP
#define STAGEHAND_OCCUPANCY_HPP

#include <cstdint>
#include <string>
#include <utility>

#include "device.hpp"
#include "error.hpp"

namespace stagehand {
inline namespace abi0 {

// Device memory of an engine. The destructor frees the memory, and waits for the work on the device before. It must run
// before the last reference to the device is closed, because that frees the memory as well.
class Allocation {
public:
    // The tag is "default".
    Allocation(const Device& device, std::uint64_t bytes) : device_(device.get()), bytes_(bytes) {
        check(sh_alloc(device_, bytes, nullptr, &address_));
    }
    // `contents`: SH_CONTENTS_*. `flags`: SH_ALLOC_*.
    Allocation(const Device& device, std::uint64_t bytes, const std::string& tag,
               std::uint32_t contents = SH_CONTENTS_DEFAULT, std::uint32_t flags = 0)
        : device_(device.get()), bytes_(bytes) {
        sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
        options.tag = tag.c_str();
        options.contents = contents;
        options.flags = flags;
        check(sh_alloc(device_, bytes, &options, &address_));
    }
    Allocation(Allocation&& other) noexcept : device_(other.device_), bytes_(other.bytes_), address_(other.release()) {}
    Allocation& operator=(Allocation&& other) noexcept {
        if (this != &other) {
            drop();
            device_ = other.device_;
            bytes_ = other.bytes_;
            address_ = other.release();
        }
        return *this;
    }
    ~Allocation() { drop(); }

    // 0: this owner holds nothing.
    std::uint64_t address() const noexcept { return address_; }
    std::uint64_t size() const noexcept { return address_ ? bytes_ : 0; }
    // Gives the memory to the caller, who frees it with sh_free().
    std::uint64_t release() noexcept { return std::exchange(address_, std::uint64_t(0)); }
    // Frees the memory now. The owner keeps the memory if this throws.
    void free() {
        check(sh_free(device_, address_));
        address_ = 0;
    }

private:
    void drop() noexcept {
        if (address_) ignore(sh_free(device_, address_));
    }

    sh_device* device_;
    std::uint64_t bytes_;
    std::uint64_t address_ = 0;
};

}  // namespace abi0
}  // namespace stagehand

#endif
