// Protection, reservations, guests, scopes, trimming and pressure.
#include "api/guard.h"
#include "base/flags.h"

using namespace stagehand;
using namespace stagehand::api;

namespace {

// What sh_scope_end() ends. The runtime may be destroyed before.
struct Scope {
    enum class Kind { keep, guest };
    Kind kind;
    sh_runtime* target;
};
using Scopes = HandleTable<Scope, kScopeTag>;

Scopes& scopes() {
    static Scopes* const instance = new Scopes;
    return *instance;
}

// Begins something that a scope ends. All that may fail for want of memory comes before it has begun.
template <class Begin>
Status open_scope(Scope::Kind kind, sh_runtime* target, sh_scope** out_scope, Begin&& begin) {
    auto scope = std::make_shared<Scope>(Scope{kind, target});
    Scopes::Reservation slot(scopes());
    SH_TRY(begin());
    *out_scope = static_cast<sh_scope*>(slot.publish(std::move(scope)));
    return Status();
}

}  // namespace

extern "C" {

sh_status sh_protect_blocks(sh_runtime* runtime, const sh_block* blocks, uint64_t count) {
    return guarded([&] {
        std::span<const sh_block> ids;
        SH_TRY(take_blocks(blocks, count, &ids));
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->residency().protect(ids);
    });
}

sh_status sh_unprotect_blocks(sh_runtime* runtime, const sh_block* blocks, uint64_t count) {
    return guarded([&] {
        std::span<const sh_block> ids;
        SH_TRY(take_blocks(blocks, count, &ids));
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->residency().unprotect(ids);
    });
}

sh_status sh_keep_resident(sh_runtime* runtime, sh_scope** out_scope) {
    return guarded([&] {
        if (!out_scope) return Status(SH_ERROR_INVALID_ARGUMENT, "out_scope is NULL");
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return open_scope(Scope::Kind::keep, runtime, out_scope, [&] {
            at.runtime->residency().keep_begin();
            return Status();
        });
    });
}

sh_status sh_reserve(sh_runtime* runtime, uint64_t bytes, uint32_t priority) {
    return guarded([&] {
        if (priority != SH_PRIORITY_PRIMARY && priority != SH_PRIORITY_SECONDARY)
            return Status(SH_ERROR_INVALID_ARGUMENT,
                          "priority " + std::to_string(priority) + " is not one of SH_PRIORITY_*");
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->residency().reserve(
            bytes, priority == SH_PRIORITY_PRIMARY ? policy::Priority::primary : policy::Priority::secondary, at.lock);
    });
}

sh_status sh_release_reservation(sh_runtime* runtime) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        at.runtime->residency().release_reservation();
        return Status();
    });
}

sh_status sh_guest_begin(sh_runtime* guest, const sh_guest_options* options, sh_scope** out_scope) {
    return guarded([&] {
        sh_guest_options wanted;
        SH_TRY(take_options(options, "options", &wanted));
        SH_TRY(check_flags("options.flags", wanted.flags, {SH_KNOWN(SH_GUEST_SHRINK)}));
        if (!out_scope) return Status(SH_ERROR_INVALID_ARGUMENT, "out_scope is NULL");
        LockedRuntime at;
        SH_TRY(find_runtime(guest, &at));
        return open_scope(Scope::Kind::guest, guest, out_scope,
                          [&] { return at.runtime->residency().guest_begin(wanted, at.lock); });
    });
}

sh_status sh_scope_end(sh_scope* scope) {
    return guarded([&] {
        if (!scope) return Status();
        core::Lock lock;
        auto* const slot = scopes().lock(scope, &lock);
        if (!slot) return Status(SH_ERROR_INVALID_HANDLE, "scope is not an open scope");
        const std::shared_ptr<Scope> ended = scopes().remove(*slot);
        lock.unlock();
        scopes().recycle(*slot);
        LockedRuntime at;
        Status status = find_runtime(ended->target, &at);
        if (status.ok() && ended->kind == Scope::Kind::guest)
            status = at.runtime->residency().guest_end(at.lock);
        else if (status.ok())
            at.runtime->residency().keep_end();
        // Its runtime is gone, or goes while this waits for its memory: then so has the scope.
        return status.code() == SH_ERROR_INVALID_HANDLE || status.code() == SH_ERROR_CANCELLED ? Status() : status;
    });
}

sh_status sh_trim(sh_runtime* runtime, uint64_t keep_bytes, uint64_t* out_bytes) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->residency().trim(keep_bytes, out_bytes, at.lock);
    });
}

sh_status sh_set_pressure(sh_runtime* runtime, sh_pressure_fn pressure, void* user_data) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->set_pressure(runtime, pressure, user_data, at.lock);
    });
}

}  // extern "C"
