// In place of helper_names.cpp, in a build without helpers: nobody helps, and who asks for it is told.
#include "transfer/carrier/helper_names.h"

namespace stagehand::transfer {
namespace {

Status refuse(const std::string& names) {
    if (names.empty()) return Status();
    return Status(SH_ERROR_UNSUPPORTED, "options.helpers.devices is \"" + names + "\": this build has no helpers");
}

}  // namespace

Status HelperNames::check(const std::string&, const BackendDevice&) const { return refuse(text_); }

Status HelperNames::check_reopened(const std::string&, const char* given) const { return refuse(given ? given : ""); }

Status HelperNames::list(std::vector<std::string>*) const { return Status(); }

}  // namespace stagehand::transfer
