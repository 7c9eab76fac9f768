// C++ owners of what keeps memory on the device: scopes, protections, reservations. Included by stagehand.hpp.
#ifndef STAGEHAND_RESIDENCY_HPP
#define STAGEHAND_RESIDENCY_HPP

#include <cstdint>
#include <utility>
#include <vector>

#include "error.hpp"

namespace stagehand {
inline namespace abi0 {

// A scope in which a runtime is kept resident, or is a guest: ended by the destructor, on every path.
class Scope {
public:
    // Takes over a scope.
    explicit Scope(sh_scope* scope) noexcept : scope_(scope) {}
    Scope(Scope&& other) noexcept : scope_(std::exchange(other.scope_, nullptr)) {}
    Scope& operator=(Scope&& other) noexcept {
        if (this != &other) {
            sh_scope_end(scope_);
            scope_ = std::exchange(other.scope_, nullptr);
        }
        return *this;
    }
    ~Scope() { sh_scope_end(scope_); }

    sh_scope* get() const noexcept { return scope_; }
    // Ends it now. It has ended even if this throws.
    void end() { check(sh_scope_end(std::exchange(scope_, nullptr))); }

private:
    sh_scope* scope_ = nullptr;
};

// Blocks that are protected: once less from the destructor on.
class Protection {
public:
    Protection(sh_runtime* runtime, Span<const sh_block> blocks) : blocks_(blocks.begin(), blocks.end()) {
        check(sh_protect_blocks(runtime, blocks_.data(), blocks_.size()));
        runtime_ = runtime;
    }
    Protection(Protection&& other) noexcept : runtime_(std::exchange(other.runtime_, nullptr)), blocks_(std::move(other.blocks_)) {}
    Protection& operator=(Protection&& other) noexcept {
        if (this != &other) {
            drop();
            runtime_ = std::exchange(other.runtime_, nullptr);
            blocks_ = std::move(other.blocks_);
        }
        return *this;
    }
    ~Protection() { drop(); }

private:
    void drop() noexcept {
        if (runtime_) sh_unprotect_blocks(runtime_, blocks_.data(), blocks_.size());
    }

    sh_runtime* runtime_ = nullptr;
    std::vector<sh_block> blocks_;
};

// A runtime's reservation: released by the destructor. A runtime has one at most. Assigning it anew replaces its terms
// (`reservation = runtime.reserve(more)`); of two that live side by side, the first that ends releases it.
class Reservation {
public:
    Reservation(sh_runtime* target, std::uint64_t bytes, std::uint32_t priority) {
        check(sh_reserve(target, nullptr, bytes, priority));
        target_ = target;
    }
    Reservation(Reservation&& other) noexcept : target_(std::exchange(other.target_, nullptr)) {}
    Reservation& operator=(Reservation&& other) noexcept {
        if (this != &other) {
            if (target_ != other.target_) drop();  // else it is the other's by now
            target_ = std::exchange(other.target_, nullptr);
        }
        return *this;
    }
    ~Reservation() { drop(); }

private:
    void drop() noexcept {
        if (target_) sh_release_reservation(target_, nullptr);
    }

    sh_runtime* target_ = nullptr;
};

}  // namespace abi0
}  // namespace stagehand

#endif
