// A program that searches for one backend and prints the result, so that a test can choose the environment, the
// directory and the rights: plugin-probe NAME [PATH], or plugin-probe --list. Prints the status, the effective user,
// the path and the text, one per line. With --list, it prints one line for each backend. plugin-probe --open NAME PATH
// OPTIONS opens the first device of the plugin. It also prints how many devices the plugin has closed, and the flags of
// the device. plugin-probe --auto opens the device "auto", and prints its backend in place of the path.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include <stagehand/stagehand.h>

#include "plugins/backends.h"

namespace {

int open_device(const char* name, const char* path, const char* device_options) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.backend_path = path;
    options.backend_options = device_options;
    sh_device* device = nullptr;
    const sh_status status = sh_device_open(name, &options, &device);
    char text[1024] = "";
    if (status != SH_OK) sh_last_error(text, sizeof text);
    std::printf("%d\n%u\n%s\n%s\n", status, static_cast<unsigned>(geteuid()), path, text);
    void* const file = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    const auto closed = file ? reinterpret_cast<int (*)()>(dlsym(file, "sh_test_closed_devices")) : nullptr;
    std::printf("closed=%d\n", closed ? closed() : 0);
    auto caps = sh_sized<sh_device_caps>();
    if (device && sh_device_get_caps(device, &caps) == SH_OK) std::printf("flags=%u\n", caps.flags);
    sh_device_close(device);
    return status != SH_OK;
}

int open_auto() {
    sh_device* device = nullptr;
    char text[1024] = "";
    auto caps = sh_sized<sh_device_caps>();
    sh_status status = sh_device_open("auto", nullptr, &device);
    if (status == SH_OK) status = sh_device_get_caps(device, &caps);
    if (status != SH_OK) sh_last_error(text, sizeof text);
    std::printf("%d\n%u\n%s\n%s\n", status, static_cast<unsigned>(geteuid()), caps.backend, text);
    sh_device_close(device);
    return status != SH_OK;
}

}  // namespace

int main(int argc, char** argv) {
    namespace plugins = stagehand::plugins;
    if (argc == 2 && !std::strcmp(argv[1], "--list")) {
        for (const plugins::ListedBackend& backend : plugins::list_backends()) {
            std::printf("%s|%d|%d|%u|%s|%s\n", backend.name.c_str(), backend.status.code(), backend.built_in,
                        backend.device_count, backend.path.c_str(), backend.status.ok() ? "" : backend.status.text());
        }
        return 0;
    }
    if (argc == 2 && !std::strcmp(argv[1], "--auto")) return open_auto();
    if (argc == 5 && !std::strcmp(argv[1], "--open")) return open_device(argv[2], argv[3], argv[4]);
    if (argc != 2 && argc != 3) return 2;
    const sh_backend* backend = nullptr;
    std::string path;
    const stagehand::Status status = plugins::find_backend(argv[1], argc == 3 ? argv[2] : nullptr, &backend, &path);
    std::printf("%d\n%u\n%s\n%s\n", status.code(), static_cast<unsigned>(geteuid()), path.c_str(),
                status.ok() ? "" : status.text());
    if (!status.ok()) return 1;
    std::printf("clock=%d size=%d\n", backend->clock != nullptr, backend->struct_size == sizeof(sh_backend));
    return 0;
}
