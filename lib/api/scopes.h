// Scopes: what lasts until sh_scope_end().
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "api/guard.h"

namespace stagehand::api {

struct Scope {
    std::function<Status()> end;
    bool refuses = false;  // SH_ERROR_INVALID_STATE means that it goes on
    bool ending = false;
};
using Scopes = HandleTable<Scope, kScopeTag>;
Scopes& scopes();

// `status` of the end of a scope whose object may be destroyed before: then the scope has ended with it.
inline Status unless_gone(Status status) {
    return status.code() == SH_ERROR_INVALID_HANDLE || status.code() == SH_ERROR_CANCELLED ? Status() : status;
}
// The end of a scope of a runtime.
std::function<Status()> in_runtime(sh_runtime* target, std::function<Status(LockedRuntime&)> end);

// Begins something that a scope ends. All that may fail for want of memory comes before it has begun. Without an
// `out_scope` it does not end before its object.
template <class Begin>
Status open_scope(sh_scope** out_scope, std::function<Status()> end, Begin&& begin, bool refuses = false) {
    if (!out_scope) return begin();
    auto scope = std::make_shared<Scope>(Scope{std::move(end), refuses});
    Scopes::Reservation slot(scopes());
    SH_TRY(begin());
    *out_scope = static_cast<sh_scope*>(slot.publish(std::move(scope)));
    return Status();
}

}  // namespace stagehand::api
