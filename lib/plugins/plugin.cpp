#include "plugins/plugin.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "plugins/load_error.h"
#include "plugins/table_check.h"
#include "support/static_program.h"

namespace stagehand::plugins {
namespace {

Status check_owner_and_mode(const std::string& path, const char* what, bool want_directory) {
    struct stat status = {};
    if (stat(path.c_str(), &status) != 0) return refused(path + ": " + std::strerror(errno));
    const bool is_right_kind = want_directory ? S_ISDIR(status.st_mode) : S_ISREG(status.st_mode);
    if (!is_right_kind) return refused(path + " is not a " + (want_directory ? "directory" : "regular file"));
    if (status.st_mode & S_IWOTH) return refused(std::string(what) + " " + path + " is writable by every user");
    if (status.st_uid != 0 && status.st_uid != geteuid()) {
        return refused(std::string(what) + " " + path + " belongs to user " + std::to_string(status.st_uid) +
                       ", not to root or user " + std::to_string(geteuid()));
    }
    return Status();
}

std::string directory_of(const std::string& path) {
    const size_t slash = path.find_last_of('/');
    return slash == 0 ? "/" : path.substr(0, slash);
}

// The code of a plugin runs as soon as it is loaded. So its file is checked before, both under the given path and under
// the real path.
Status check_trust(const std::string& path, std::string* out_real_path) {
    char real[PATH_MAX];
    if (!realpath(path.c_str(), real)) return refused(std::strerror(errno));
    *out_real_path = real;
    SH_TRY(check_owner_and_mode(*out_real_path, "the file", false));
    SH_TRY(check_owner_and_mode(directory_of(*out_real_path), "the directory", true));
    return check_owner_and_mode(directory_of(path), "the directory", true);
}

}  // namespace

Status load_entry(const std::string& path, const char* symbol, void** out_entry, bool* out_exists) {
    struct stat status = {};
    *out_exists = stat(path.c_str(), &status) == 0;
    std::string real_path;
    SH_TRY(check_trust(path, &real_path));
    if (support::is_static_program()) return refused("the program is linked with -static, so that it loads no plugins");
    void* const library = dlopen(real_path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char* const reason = dlerror();
        return refused(reason ? reason : "the dynamic linker gives no reason");
    }
    *out_entry = dlsym(library, symbol);
    return Status();
}

Status load_plugin(const std::string& path, const std::string& name, const sh_backend_host& services,
                   const sh_backend** out_backend, bool* out_exists) {
    void* entry = nullptr;
    SH_TRY(load_entry(path, "sh_backend_query", &entry, out_exists));
    if (!entry) return refused("it is not a backend: it does not export sh_backend_query");
    const auto query = reinterpret_cast<sh_backend_query_fn>(entry);
    const sh_backend* table = nullptr;
    if (const sh_status code = query(SH_BACKEND_SPI_VERSION, &services, &table); code < 0) {
        return refused("it does not support version " + std::to_string(SH_BACKEND_SPI_VERSION) + " of the interface (" +
                       sh_status_string(code) + ")");
    }
    return check_table(table, name, out_backend);
}

}  // namespace stagehand::plugins
