#include "core/device/device.h"

#include <algorithm>
#include <bit>
#include <map>

#include "backend/device_name.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/size_text.h"
#include "core/device/device_options.h"
#include "core/device/process_marker.h"
#include "platform/processors.h"
#include "plugins/backends.h"
#include "plugins/table_check.h"
#include "policy/budget.h"

namespace stagehand::core {
namespace {

// While nothing has to grow, free memory is read no more often than this, in nanoseconds.
constexpr uint64_t kLookEvery = 100'000'000;
// The reserve that growth leaves free is at most this part of the device, so that a small device keeps most of its
// memory.
constexpr uint64_t kReservePart = 20;

// The open devices, by name.
struct OpenDevices {
    std::mutex mutex;
    std::map<std::string, std::weak_ptr<Device>> devices;
};

// Never destroyed, because engines may close devices while the process exits.
OpenDevices& open_devices() {
    static OpenDevices* const instance = new OpenDevices;
    return *instance;
}

// The first GPU backend that works, else the host.
std::string choose_device() {
    for (const char* gpu : {"cuda", "hip"}) {
        const sh_backend* table = nullptr;
        std::string path;
        uint32_t count = 0;
        if (plugins::find_backend(gpu, nullptr, &table, &path).ok() && table->probe(&count) == SH_OK && count > 0)
            return gpu;
    }
    return "host";
}

// The granularity, enlarged with the budget so that there are about a thousand pages. Mapping costs time for each page,
// and rounding costs memory by the size of a page. The budget counts only as far as the device has the memory.
uint64_t choose_page(const sh_backend_device_info& info, uint64_t wanted, uint64_t budget) {
    if (wanted) return (wanted + info.granularity_bytes - 1) / info.granularity_bytes * info.granularity_bytes;
    const uint64_t largest = std::min(info.largest_page_bytes, limits::kLargestPage);
    return std::clamp(std::bit_floor(std::max<uint64_t>(budget / 1024, 1)), info.granularity_bytes, largest);
}

// The memory that an automatic budget leaves to others: as the option says, else the default margin or a tenth of the
// device, whichever is less.
uint64_t margin(uint64_t wanted, uint64_t total) {
    return wanted ? wanted : std::min(policy::default_margin_bytes, total / 10);
}

// `margin_bytes` is named as the cause if the budget is automatic.
Status too_small(uint64_t budget, uint64_t page, uint64_t margin_bytes) {
    const std::string text =
        "a budget of " + exact_size_text(budget) + " is less than one page of " + exact_size_text(page);
    return Status(SH_ERROR_BUDGET,
                  margin_bytes ? text + ": margin_bytes " + std::to_string(margin_bytes) + " leaves no more" : text);
}

std::string without_page_mapping(const char* backend_options) {
    const std::string given = backend_options ? backend_options : "";
    if (given.find("map_pages") != std::string::npos) return given;
    return given.empty() ? "map_pages=0" : given + ";map_pages=0";
}

HostPolicy host_policy(const sh_host_options& options) {
    HostPolicy policy;
    policy.allocate = options.alloc;
    policy.free = options.free;
    policy.user_data = options.user_data;
    if (options.staging_cpus) policy.processors = platform::parse_processors(options.staging_cpus);
    policy.is_pinned = (options.flags & SH_HOST_PINNED) != 0;
    policy.huge_pages = !(options.flags & SH_HOST_SMALL_PAGES);
    policy.chooses_node = options.node != SH_HOST_NODE_ANY;
    return policy;
}

transfer::StagingOptions staging_options(const sh_host_options& options) {
    transfer::StagingOptions staging;
    staging.bytes = options.staging_bytes;
    staging.threads = options.staging_threads;
    return staging;
}

Status open_backend(const std::string& name, uint32_t index, const DeviceOptions& all,
                    std::unique_ptr<BackendDevice>* out) {
    const sh_device_options& options = all.device;
    const sh_backend* table = nullptr;
    std::string path;
    SH_TRY(plugins::find_backend(name.c_str(), options.backend_path, &table, &path));
    const auto failed = [&](sh_status code) { return Status(code, "backend " + name + ": " + error_text(*table)); };
    uint32_t count = 0;
    if (const sh_status code = table->probe(&count); code < 0) return failed(code);
    if (index >= count)
        return Status(SH_ERROR_NOT_FOUND, "backend " + name + " has " + std::to_string(count) +
                                              " devices, but no device number " + std::to_string(index));
    sh_backend_device* device = nullptr;
    sh_backend_device_info info = {};
    info.struct_size = sizeof info;
    sh_status code = SH_ERROR_INVALID_ARGUMENT;
    if (options.device_memory) {
        const std::string without_pages = without_page_mapping(options.backend_options);
        code = table->device_open(index, without_pages.c_str(), &device, &info);
    }
    // A backend that does not know the option may have no pages anyway.
    if (code < 0) code = table->device_open(index, options.backend_options, &device, &info);
    if (code < 0) return failed(code);
    if (all.host.node && all.host.node != SH_HOST_NODE_ANY) info.host_node = all.host.node;
    if (!device)
        return Status(SH_ERROR_BACKEND, "backend " + name + ": device_open() succeeded but returned no device");
    std::unique_ptr<BackendDevice> opened;
    try {
        opened = std::make_unique<BackendDevice>(*table, device, info, host_policy(all.host));  // closes the device
    } catch (...) {
        table->device_close(device);
        throw;
    }
    SH_TRY(plugins::check_device(name, info));
    if (options.device_memory) {
        if (opened->maps_pages())
            return Status(SH_ERROR_UNSUPPORTED,
                          "options.device_memory: backend " + name + " takes its memory in pages");
        opened->lend(reinterpret_cast<uint64_t>(options.device_memory), options.device_memory_bytes);
    }
    *out = std::move(opened);
    return Status();
}

}  // namespace

Device::Device(std::string backend_name, uint32_t ordinal, std::unique_ptr<BackendDevice> backend,
               const DeviceOptions& options, uint64_t page_bytes)
    : backend_name_(std::move(backend_name)),
      ordinal_(ordinal),
      name_(backend_name_ + ":" + std::to_string(ordinal)),
      margin_bytes_(options.device.margin_bytes),
      link_is_given_(options.device.link_bytes_per_second != 0),
      helper_names_(options.helpers.devices),
      flags_(options.helpers.flags),
      backend_(std::move(backend)),
      lanes_(*backend_),
      pool_(*backend_, page_bytes),
      arbiter_([this] { return backend_->now_ns(); }, page_bytes),
      staging_(*backend_, staging_options(options.host)),
      budget_bytes_(options.device.budget_bytes) {
    const uint64_t link = options.device.link_bytes_per_second ? options.device.link_bytes_per_second
                                                               : backend_->info().link_bytes_per_second;
    set_link(static_cast<double>(link) / 1e9);
    lone_copy_ns_ = backend_->info().copy_latency_ns;
}

// The way to the host is taken to be as fast, as it is for PCIe.
void Device::set_link(double bytes_per_ns) {
    lanes_.set_rate(transfer::Direction::to_device, bytes_per_ns);
    links_.to_device.set_rate(bytes_per_ns);
    links_.to_host.set_rate(bytes_per_ns);
}

Status Device::automatic_budget(uint64_t* bytes) {
    uint64_t free = 0, total = 0;
    SH_TRY(backend_->memory_info(&free, &total));
    // The budget includes what the library holds already.
    *bytes = policy::automatic_budget(free, pool_.used_bytes(), margin(margin_bytes_, total));
    return Status();
}

Status Device::open(const char* name, const DeviceOptions& all_options, std::shared_ptr<Device>* out) {
    SH_TRY(check_options(all_options));
    const sh_device_options& options = all_options.device;
    SH_TRY(claim_process());
    std::string backend_name;
    uint32_t index = 0;
    SH_TRY(split_name(std::string(name) == "auto" ? choose_device() : name, &backend_name, &index));
    const std::string key = backend_name + ":" + std::to_string(index);
    OpenDevices& all = open_devices();
    std::lock_guard lock(all.mutex);
    if (std::shared_ptr<Device> open = all.devices[key].lock()) {
        SH_TRY(open->check_reopened(all_options));
        *out = std::move(open);
        return Status();
    }
    std::unique_ptr<BackendDevice> backend;
    SH_TRY(open_backend(backend_name, index, all_options, &backend));
    SH_TRY(transfer::HelperNames(all_options.helpers.devices).check(key, *backend));
    uint64_t free = 0, total = 0;
    SH_TRY(backend->memory_info(&free, &total));
    const uint64_t budget = options.budget_bytes
                                ? options.budget_bytes
                                : policy::automatic_budget(free, 0, margin(options.margin_bytes, total));
    const uint64_t page = choose_page(backend->info(), options.page_bytes, std::min(budget, total));
    if (budget < page) return too_small(budget, page, options.budget_bytes ? 0 : options.margin_bytes);
    auto device = std::make_shared<Device>(backend_name, index, std::move(backend), all_options, page);
    SH_TRY(device->arbiter_.set_total(budget / page));
    device->take_note(free, total);  // also limits the pool
    log_line(SH_LOG_INFO, "%s: a budget of %s in pages of %s; %s of %s are free", key.c_str(),
             size_text(budget).c_str(), size_text(page).c_str(), size_text(free).c_str(), size_text(total).c_str());
    all.devices[key] = device;
    *out = std::move(device);
    return Status();
}

Status Device::check_reopened(const DeviceOptions& all) const {
    const sh_device_options& options = all.device;
    std::lock_guard lock(mutex_);
    if (options.budget_bytes && options.budget_bytes != budget_bytes_)
        return Status(SH_ERROR_INVALID_ARGUMENT,
                      name_ + " is open with " +
                          (budget_bytes_ ? "a budget of " + exact_size_text(budget_bytes_) : "an automatic budget") +
                          ": budget_bytes of " + exact_size_text(options.budget_bytes) +
                          " contradicts it; see sh_device_set_budget()");
    SH_TRY(helper_names_.check_reopened(name_, all.helpers.devices));
    if (all.helpers.flags & ~flags_)
        return Status(SH_ERROR_INVALID_ARGUMENT, name_ + " is open without SH_HELPS_OTHERS");
    if (options.page_bytes && choose_page(backend_->info(), options.page_bytes, 0) != pool_.page_bytes())
        return Status(SH_ERROR_INVALID_ARGUMENT, name_ + " is open with pages of " +
                                                     exact_size_text(pool_.page_bytes()) + ": page_bytes of " +
                                                     exact_size_text(options.page_bytes) + " contradicts it");
    return Status();
}

Status Device::helpers(std::vector<std::string>* out) const {
    if (!helper_names_.are_all_that_consent()) return helper_names_.list(out);
    OpenDevices& all = open_devices();
    std::lock_guard lock(all.mutex);
    for (const auto& [name, weak] : all.devices)
        if (const std::shared_ptr<Device> device = weak.lock();
            device && device.get() != this && device->helps() && device->backend_name_ == backend_name_)
            out->push_back(name);
    return Status();
}

uint64_t Device::known_link_bytes_per_second() const {
    return static_cast<uint64_t>(lanes_.rate(transfer::Direction::to_device) * 1e9);
}

Status Device::set_budget(uint64_t bytes) {
    uint64_t budget = bytes;
    if (!budget) SH_TRY(automatic_budget(&budget));
    const uint64_t pages = budget / page_bytes();
    if (!pages) return too_small(budget, page_bytes(), bytes ? 0 : margin_bytes_);
    {
        // Under one lock: of two concurrent callers, the same one wins in all three places.
        std::lock_guard lock(mutex_);
        SH_TRY(arbiter_.set_total(pages));
        limit_pool();
        budget_bytes_ = bytes;
    }
    notice_free_memory(true);  // a higher ceiling promises no more memory than there is
    arbiter_.reclaimer().reclaim();
    return Status();
}

void Device::limit_pool() {
    pool_.set_limit([this] { return arbiter_.pages_to_hold(); });
}

void Device::notice_free_memory(bool now) {
    const uint64_t at = backend_->now_ns(), before = looked_ns_.load(std::memory_order_relaxed);
    if (!now && at - before < kLookEvery) return;
    looked_ns_.store(at, std::memory_order_relaxed);
    uint64_t free = 0, total = 0;
    if (!backend_->memory_info(&free, &total).ok()) return;  // a shortage then shows when memory is taken
    take_note(free, total);
}

// Small changes of the free memory are not worth a new plan.
void Device::take_note(uint64_t free, uint64_t total) {
    const uint64_t held = pool_.used_bytes();
    std::lock_guard lock(mutex_);
    const uint64_t budget = arbiter_.total_pages() * page_bytes();
    uint64_t present = 0, noticed = 0;
    if (budget_bytes_) {
        present =
            policy::clamp_growth(budget, held, free, std::min(policy::growth_reserve_bytes, total / kReservePart));
        noticed = std::max(held, policy::noticed(present, page_bytes()));  // memory that is held stays held
    } else {
        present = policy::automatic_budget(free, held, margin(margin_bytes_, total));
        noticed = policy::noticed(present, page_bytes());
        if (noticed > budget) (void)arbiter_.set_total(noticed / page_bytes()).ok();
    }
    arbiter_.set_present(present >= budget ? UINT64_MAX : noticed / page_bytes());
    limit_pool();
}

Status Device::memory(sh_memory_info* out) {
    uint64_t free = 0, total = 0;
    SH_TRY(backend_->memory_info(&free, &total));
    out->runtime_count = arbiter_.runtime_count();
    out->budget_bytes = arbiter_.total_pages() * page_bytes();
    out->used_bytes = pool_.used_bytes();
    out->peak_bytes = pool_.peak_bytes();
    out->free_bytes = free;
    out->total_bytes = total;
    out->page_bytes = page_bytes();
    out->staging_bytes = staging_.bytes();
    out->pinned_bytes = staging_.pinned_bytes() + released_contents_.load(std::memory_order_relaxed);
    const Ledger::Figures figures = arbiter_.figures();
    out->reserved_bytes = figures.reserved * page_bytes();
    out->guest_bytes = figures.guests * page_bytes();
    out->protected_bytes = figures.kept * page_bytes();
    out->headroom_bytes = figures.headroom * page_bytes();
    std::lock_guard lock(mutex_);
    for (const auto& [address, memory] : host_memory_)
        if (memory.pinned()) out->pinned_bytes += memory.bytes();
    return Status();
}

void Device::capabilities(sh_device_caps* out) {
    const sh_backend_device_info& info = backend_->info();
    const auto flag = [&](uint32_t from, uint32_t to) { return backend_->has(from) ? to : 0u; };
    out->flags = flag(SH_BACKEND_FIXED_ADDRESSES, SH_DEVICE_FIXED_ADDRESSES) |
                 flag(SH_BACKEND_HOST_ADDRESSABLE, SH_DEVICE_HOST_ADDRESSABLE) |
                 flag(SH_BACKEND_VIRTUAL_TIME, SH_DEVICE_VIRTUAL_TIME) | flag(SH_BACKEND_IS_GPU, SH_DEVICE_IS_GPU);
    const auto copy = [](char* to, size_t capacity, const std::string& from) {
        const size_t bytes = std::min(capacity - 1, from.size());
        from.copy(to, bytes);
        to[bytes] = 0;
    };
    out->kind = info.kind;
    out->ordinal = ordinal_;
    copy(out->backend, sizeof out->backend, backend_name_);
    copy(out->name, sizeof out->name, name_);
    copy(out->description, sizeof out->description, info.description);
    out->granularity_bytes = info.granularity_bytes;
    out->page_bytes = page_bytes();
    out->staging_piece_bytes = staging_.piece_bytes();
    out->staging_threads = staging_.threads();
    out->reserved = 0;
    out->host_node = info.host_node;
    copy(out->bus_id, sizeof out->bus_id, info.bus_id);
}

Status Device::host_alloc(uint64_t bytes, void** out, uint32_t* out_pinned) {
    transfer::PinnedMemory memory;
    SH_TRY(transfer::PinnedMemory::allocate(*backend_, bytes, &memory));
    void* const data = memory.data();
    const bool pinned = memory.pinned();
    {
        std::lock_guard lock(mutex_);
        host_memory_.emplace(data, std::move(memory));
    }
    *out = data;
    if (out_pinned) *out_pinned = pinned;
    return Status();
}

Status Device::host_free(void* memory) {
    transfer::PinnedMemory freed;  // freed outside the lock, because unpinning is slow
    std::lock_guard lock(mutex_);
    const auto found = host_memory_.find(memory);
    if (found == host_memory_.end())
        return Status(SH_ERROR_INVALID_ARGUMENT, "memory was not allocated by sh_host_alloc() on this device");
    freed = std::move(found->second);
    host_memory_.erase(found);
    return Status();
}

}  // namespace stagehand::core
