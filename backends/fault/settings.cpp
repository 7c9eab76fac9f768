#include "fault/settings.h"

#include <string_view>

#include "base/number.h"
#include "support/last_error.h"
#include "support/options.h"

namespace stagehand::fault {
namespace {

using support::fail;

// Reads text like "host" or "cuda:1".
sh_status read_wrapped(const std::string& text, Settings* out) {
    const size_t colon = text.find(':');
    out->wrapped_name = text.substr(0, colon);
    if (out->wrapped_name == "fault")
        return fail(SH_ERROR_INVALID_ARGUMENT, "option wrap: the fault backend cannot wrap itself");
    if (colon == std::string::npos) return SH_OK;
    const auto index = read_number<decltype(out->wrapped_index)>(std::string_view(text).substr(colon + 1));
    out->wrapped_index = index.value_or(0);
    if (index) return SH_OK;
    return fail(SH_ERROR_INVALID_ARGUMENT, "option wrap: '%s' is not NAME or NAME:INDEX of a backend", text.c_str());
}

}  // namespace

sh_status read_settings(const char* text, Settings* out) {
    Settings settings;
    support::Options options;
    sh_status status = support::Options::parse(text, &options);
    // The text of the first failure stays, so nothing is read after a failure.
    const auto take = [&status](auto&& read) {
        if (status >= 0) status = read();
    };
    std::string wrapped = settings.wrapped_name, fail_call;
    int64_t fail_status = settings.fail_status;
    uint64_t late = 0, ordered = 0;
    options.take_text("wrap", &wrapped);
    options.take_text("fail_call", &fail_call);
    take([&] { return read_wrapped(wrapped, &settings); });
    take([&] { return options.take_number("fail_at", &settings.fail_at); });
    take([&] { return options.take_number("fail_count", &settings.fail_count); });
    take([&] { return options.take_number("late", &late); });
    take([&] { return options.take_number("ordered", &ordered); });
    take([&] { return options.take_signed("fail_status", &fail_status); });
    take([&] { return options.take_duration("delay_us", 1000, &settings.delay_ns); });
    take([&] { return options.take_number("delay_seed", &settings.delay_seed); });
    if (status < 0) return status;
    if (fail_status >= 0 || fail_status < INT32_MIN) {
        return fail(SH_ERROR_INVALID_ARGUMENT, "option fail_status: %lld is not an error code",
                    static_cast<long long>(fail_status));
    }
    settings.fail_status = static_cast<sh_status>(fail_status);
    settings.late = late != 0;
    if (ordered > 2)
        return fail(SH_ERROR_INVALID_ARGUMENT, "option ordered: %llu is not 0, 1 or 2",
                    static_cast<unsigned long long>(ordered));
    settings.ordered = static_cast<uint32_t>(ordered);
    settings.any_call = fail_call.empty();
    if (!settings.any_call && !call_named(fail_call, &settings.fail_call)) {
        return fail(SH_ERROR_INVALID_ARGUMENT, "option fail_call: '%s' is not a call that can fail", fail_call.c_str());
    }
    settings.wrapped_options = options.rest();
    *out = std::move(settings);
    return SH_OK;
}

}  // namespace stagehand::fault
