// Options: the "key=value;key=value" text with which a device is opened. The backend takes the values one by one.
// Values that are left are unknown options.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <stagehand/base.h>

namespace stagehand::support {

// A function that fails stores a text for last_error(). The text names the key, and the value if the value is wrong.
class Options {
public:
    // `text` may be NULL. Spaces around keys and values, and empty entries, are ignored. A key that is given twice is
    // an error.
    static sh_status parse(const char* text, Options* out);

    // Each function leaves `value` unchanged if the key is absent.
    sh_status take_bytes(const char* key, uint64_t* value);  // 4096, 64KiB, 1.5GiB, 2GB
    sh_status take_bytes(const char* key, const char* other_name, uint64_t* value);
    sh_status take_rate(const char* key,
                        uint64_t* bytes_per_second);  // 55.5e9, 12GB/s, 10GiB; 0, or as limits::is_link
    sh_status take_duration(const char* key, uint64_t plain_unit_ns,
                            uint64_t* value_ns);  // 20us; a plain number has plain_unit_ns as its unit
    sh_status take_number(const char* key, uint64_t* value);
    sh_status take_signed(const char* key, int64_t* value);
    sh_status take_real(const char* key, double least, double most, double* value);
    sh_status take_flag(const char* key, bool* value);  // 0 or 1
    void take_text(const char* key, std::string* value);

    // Returns SH_ERROR_INVALID_ARGUMENT if keys are left. The text names the first of them and all known keys.
    sh_status finish(const char* known_keys) const;

    // Returns the remaining options in the form that parse() reads.
    std::string rest() const;

private:
    bool has(const char* key) const;
    bool take(const char* key, std::string* value);

    std::vector<std::pair<std::string, std::string>> entries_;
};

// Refuses a latency of copies that is too long for the library.
sh_status check_latency(uint64_t latency_ns);

}  // namespace stagehand::support
