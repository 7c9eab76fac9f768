// The C++ owner of scopes. stagehand.hpp includes this file.
#ifndef STAGEHAND_SCOPE_HPP
#define STAGEHAND_SCOPE_HPP

#include <utility>

#include "error.hpp"

namespace stagehand {
inline namespace abi0 {

// What lasts until it is ended, such as a protection, a guest's stay or a trace. The destructor ends the scope.
class Scope {
public:
    // Takes ownership of a scope.
    explicit Scope(sh_scope* scope) noexcept : scope_(scope) {}
    // Begins a scope by a call that writes its handle.
    template <class Begin, class = decltype(std::declval<Begin&>()(static_cast<sh_scope**>(nullptr)))>
    explicit Scope(Begin&& begin) {
        check(begin(&scope_));
    }
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
    // Ends the scope now. The scope has ended even if this throws, unless a callback must not end it
    // (SH_ERROR_INVALID_STATE).
    void end() {
        const sh_status status = sh_scope_end(scope_);
        if (status != SH_ERROR_INVALID_STATE) scope_ = nullptr;
        check(status);
    }
    // Gives the scope to the caller, who ends it.
    sh_scope* release() noexcept { return std::exchange(scope_, nullptr); }

private:
    sh_scope* scope_ = nullptr;
};

}  // namespace abi0
}  // namespace stagehand

#endif
