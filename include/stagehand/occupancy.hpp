// C++ owners for device memory that leaves the device and comes back, and for functions that the library calls before
// and after. stagehand.hpp includes this file. The methods of Device pause and resume the memory.
#ifndef STAGEHAND_OCCUPANCY_HPP
#define STAGEHAND_OCCUPANCY_HPP

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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
    // `contents`: SH_CONTENTS_*. `flags`: SH_ALLOC_*. `format`: SH_FORMAT_*, see sh_alloc_options.
    Allocation(const Device& device, std::uint64_t bytes, const std::string& tag,
               std::uint32_t contents = SH_CONTENTS_DEFAULT, std::uint32_t flags = 0, std::uint32_t format = 0)
        : device_(device.get()), bytes_(bytes) {
        sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
        options.tag = tag.c_str();
        options.contents = contents;
        options.flags = flags;
        options.format = format;
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

// Functions that are called with the tags before a pause, and when the tags run again: after a resume, and after a
// pause that failed. They run on the thread that pauses or resumes, and must not allocate, free, pause or resume memory
// of the device. If the first function throws, nothing is paused, and the pause throws an Error of SH_ERROR_CALLBACK
// with the text of the exception. Exceptions of the second function are lost. The destructor ends the calls. It must
// run before the last reference to the device is closed, unless no pause comes any more.
class PauseCallbacks {
public:
    using Function = std::function<void(const std::vector<std::string>& tags)>;

    // One of the functions may be empty.
    PauseCallbacks(const Device& device, Function before_pause, Function after_resume = Function())
        : functions_(new Functions{std::move(before_pause), std::move(after_resume)}) {
        check(sh_occupancy_add_callbacks(device.get(), functions_->before ? call_before : nullptr,
                                         functions_->after ? call_after : nullptr, functions_.get(), &scope_));
    }
    PauseCallbacks(PauseCallbacks&& other) noexcept
        : functions_(std::move(other.functions_)), scope_(std::exchange(other.scope_, nullptr)) {}
    PauseCallbacks& operator=(PauseCallbacks&& other) noexcept {
        if (this != &other) {
            drop();
            functions_ = std::move(other.functions_);
            scope_ = std::exchange(other.scope_, nullptr);
        }
        return *this;
    }
    ~PauseCallbacks() { drop(); }

private:
    struct Functions {
        Function before, after;
    };

    static std::int32_t call_before(const char* const* tags, std::uint64_t count, char* message, std::uint64_t bytes,
                                    void* functions) noexcept {
        try {
            static_cast<Functions*>(functions)->before(std::vector<std::string>(tags, tags + count));
            return 0;
        } catch (const std::exception& error) {
            std::snprintf(message, std::size_t(bytes), "%s", error.what());
        } catch (...) {
            std::snprintf(message, std::size_t(bytes), "an exception that has no text");
        }
        return 1;
    }
    static void call_after(const char* const* tags, std::uint64_t count, void* functions) noexcept {
        try {
            static_cast<Functions*>(functions)->after(std::vector<std::string>(tags, tags + count));
        } catch (...) {
        }
    }
    void drop() noexcept {
        // One of the functions itself cannot end the calls: they go on.
        if (sh_scope_end(scope_) == SH_ERROR_INVALID_STATE) static_cast<void>(functions_.release());
        functions_.reset();
    }

    std::unique_ptr<Functions> functions_;
    sh_scope* scope_ = nullptr;
};

}  // namespace abi0
}  // namespace stagehand

#endif
