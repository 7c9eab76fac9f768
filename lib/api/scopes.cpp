#include "api/scopes.h"

using namespace stagehand;
using namespace stagehand::api;

Scopes& stagehand::api::scopes() {
    static Scopes* const instance = new Scopes;
    return *instance;
}

std::function<Status()> stagehand::api::in_runtime(sh_runtime* target, std::function<Status(LockedRuntime&)> end) {
    return [target, end = std::move(end)] {
        LockedRuntime at;
        Status status = find_runtime(target, &at);
        if (status.ok()) status = end(at);
        return unless_gone(status);
    };
}

extern "C" sh_status sh_scope_end(sh_scope* scope) {
    return guarded([&] {
        if (!scope) return Status();
        core::Lock lock;
        auto* const slot = scopes().lock(scope, &lock);
        if (!slot || slot->object->ending) return Status(SH_ERROR_INVALID_HANDLE, "scope is not an open scope");
        std::shared_ptr<Scope> ended = slot->object;
        ended->ending = true;
        lock.unlock();
        const Status status = no_throw([&] { return ended->end(); });
        lock.lock();
        if (ended->refuses && status.code() == SH_ERROR_INVALID_STATE) {
            ended->ending = false;
            return status;
        }
        (void)scopes().remove(*slot);
        lock.unlock();
        scopes().recycle(*slot);
        return status;
    });
}
