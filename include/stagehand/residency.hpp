// C++ owners for rules that keep memory on the device: scopes, protections and reservations. stagehand.hpp includes
// this file.
#ifndef STAGEHAND_RESIDENCY_HPP
#define STAGEHAND_RESIDENCY_HPP

#include <cstdint>
#include <utility>
#include <vector>

#include "error.hpp"

namespace stagehand {
inline namespace abi0 {

// A scope in which a runtime is kept resident or is a guest. The destructor ends the scope.
class Scope {
public:
    // Takes ownership of a scope.
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
    // Ends the scope now. The scope has ended even if this throws.
    void end() { check(sh_scope_end(std::exchange(scope_, nullptr))); }

private:
    sh_scope* scope_ = nullptr;
};

// A protection of blocks. The destructor takes one protection from each block.
class Protection {
public:
    Protection(sh_runtime* runtime, Span<const sh_block> blocks) : blocks_(blocks.begin(), blocks.end()) {
        check(sh_protect_blocks(runtime, blocks_.data(), blocks_.size()));
        runtime_ = runtime;
    }
    Protection(Protection&& other) noexcept
        : runtime_(std::exchange(other.runtime_, nullptr)), blocks_(std::move(other.blocks_)) {}
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

// A reservation of a runtime. The destructor releases the reservation. A runtime has at most one reservation.
//
// Assigning a new reservation of the same runtime replaces its size and priority, as in `reservation =
// runtime.reserve(more)`. The first destructor releases the reservation if two objects for one runtime exist at the
// same time.
class Reservation {
public:
    Reservation(sh_runtime* target, std::uint64_t bytes, std::uint32_t priority) {
        check(sh_reserve(target, bytes, priority));
        target_ = target;
    }
    Reservation(Reservation&& other) noexcept : target_(std::exchange(other.target_, nullptr)) {}
    Reservation& operator=(Reservation&& other) noexcept {
        if (this != &other) {
            if (target_ != other.target_) drop();  // the reservation of the same runtime now belongs to `other`
            target_ = std::exchange(other.target_, nullptr);
        }
        return *this;
    }
    ~Reservation() { drop(); }

private:
    void drop() noexcept {
        if (target_) sh_release_reservation(target_);
    }

    sh_runtime* target_ = nullptr;
};

}  // namespace abi0
}  // namespace stagehand

#endif
