// once_more: repeats a call that gives something back, if it fails the first time. A driver may report an earlier error
// from any call. The resource must not be lost because of that.
#pragma once

#include "base/status.h"

namespace stagehand {

template <class Call>
Status once_more(Call&& call) {
    Status status = call();
    return status.ok() ? status : call();
}

}  // namespace stagehand
