//! Every misuse of tests/misuse/table.json that the types allow: an error with the status and the text of the row, and
//! nothing is lost.

mod common;

use common::*;
use libstagehand::*;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// What lasts until its end: objects that a row has begun.
enum Held<'a> {
    Step(Step<'a>),
    SpillStep(SpillStep<'a>),
    View(View<'a>),
    Members(Members<'a>),
    Update(SourceUpdate<'a>),
    Scope(Scope<'a>),
}

/// The objects of a row, by name. The first to be dropped is what borrows the others.
#[derive(Default)]
struct World<'a> {
    held: HashMap<(&'static str, String), Held<'a>>,
    tickets: HashMap<String, Ticket>,
    released: HashMap<String, TicketId>,
    allocations: HashMap<String, Allocation>,
    blocks: HashMap<String, Block>,
    sets: HashMap<String, MemberSet<'a>>,
}

/// What others borrow. It lives longer than the world.
#[derive(Default)]
struct Owners {
    device: Option<HostDevice>,
    stream: Option<Stream>,
    runtimes: HashMap<String, Runtime>,
    spillers: HashMap<String, Spiller>,
    memory: Vec<u8>,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A number, which is 0 where the field is not there.
fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn size(value: &Value) -> usize {
    usize::try_from(number(value)).unwrap()
}

fn desc(fields: &Value) -> BlockDesc {
    let mut desc = BlockDesc::new(number(&fields["bytes"]));
    for segment in list(&fields["segments"]) {
        let bytes = size(&segment["bytes"]);
        desc = desc.source(number(&segment["offset"]), Source::owned(vec![7; bytes]));
    }
    if let Some(name) = fields["name"].as_str() {
        desc = desc.name(name);
    }
    if fields["flags"] == "SH_BLOCK_MUTABLE" { desc.mutable() } else { desc }
}

fn set_options(fields: &Value) -> SetOptions {
    SetOptions {
        call_members: number(&fields["call_members"]),
        group_members: number(&fields["group_members"]),
        slots: number(&fields["slots"]),
        stride: number(&fields["stride"]),
        name: fields["name"].as_str().map(str::to_owned),
    }
}

/// Numbers of members.
fn numbers(values: &Value) -> Vec<u32> {
    list(values).iter().map(|value| u32::try_from(number(value)).unwrap()).collect()
}

fn device_options(fields: &Value) -> DeviceOptions {
    let (host, some) = (&fields["host"], |value: &Value| value.as_str().map(str::to_owned));
    DeviceOptions {
        budget_bytes: number(&fields["budget_bytes"]),
        margin_bytes: number(&fields["margin_bytes"]),
        page_bytes: number(&fields["page_bytes"]),
        link_bytes_per_second: number(&fields["link_bytes_per_second"]),
        backend_options: some(&fields["backend_options"]),
        staging_bytes: number(&host["staging_bytes"]),
        staging_threads: u32::try_from(number(&host["staging_threads"])).unwrap(),
        staging_cpus: some(&host["staging_cpus"]),
        host_node: match host["node"].as_u64() {
            Some(node) => HostNode::Node(u16::try_from(node - 1).unwrap()),
            None => HostNode::Any,
        },
        ..Default::default()
    }
}

fn spiller_options(fields: &Value) -> SpillerOptions {
    let class = |one: &Value| SpillClass { bytes: number(&one["bytes"]), count: number(&one["count"]) };
    SpillerOptions {
        keep_bytes: fields["flags"].as_str().map(|_| 0),
        high_watermark_bytes: number(&fields["high_watermark_bytes"]),
        low_watermark_bytes: number(&fields["low_watermark_bytes"]),
        pool_bytes: number(&fields["pool_bytes"]),
        classes: list(&fields["classes"]).iter().map(class).collect(),
        ..Default::default()
    }
}

impl Owners {
    fn device(&self) -> &Device {
        self.device.as_ref().unwrap()
    }

    /// Makes what others borrow. Returns false if the call makes something else.
    fn make(&mut self, call: &[Value]) -> bool {
        let name = call.last().and_then(Value::as_str).unwrap_or("").to_owned();
        match text(&call[0]) {
            "sh_device_open" if name == "device" => self.device = Some(host_with(&device_options(&call[2]))),
            "sh_device_open" | "sh_device_close" => (),
            "sh_stream_create" => self.stream = Some(self.device().stream().unwrap()),
            "sh_runtime_create" => {
                let options =
                    RuntimeOptions { name: call[2]["name"].as_str().map(str::to_owned), ..Default::default() };
                let made = Runtime::with_options(self.device(), &options).unwrap();
                self.runtimes.insert(name, made);
            }
            "sh_runtime_destroy" => drop(self.runtimes.remove(&name)),
            "sh_spiller_create" => {
                let made = Spiller::with_options(self.device(), &spiller_options(&call[2])).unwrap();
                self.spillers.insert(name, made);
            }
            _ => return false,
        }
        true
    }
}

impl<'a> World<'a> {
    fn view(&self, block: &Value) -> &View<'a> {
        let Some(Held::View(view)) = self.held.get(&("view", block.to_string())) else { panic!("{block} is not held") };
        view
    }

    fn end(&mut self, key: (&'static str, String)) -> Result<()> {
        match self.held.remove(&key).expect("something has begun") {
            Held::Step(step) => step.end(),
            Held::SpillStep(step) => step.end(),
            Held::View(view) => view.release(),
            Held::Members(members) => members.release(),
            Held::Update(update) => update.end(),
            Held::Scope(scope) => scope.end(),
        }
    }

    fn block(&self, name: &Value) -> Block {
        let raw = || Block::from_raw(name.as_u64().unwrap_or(1 << 20));
        name.as_str().and_then(|name| self.blocks.get(name).copied()).unwrap_or_else(raw)
    }

    fn blocks(&self, names: &Value) -> Vec<Block> {
        list(names).iter().map(|name| self.block(name)).collect()
    }

    fn ticket(&self, name: &Value) -> TicketId {
        let named = name
            .as_str()
            .and_then(|name| self.tickets.get(name).map(Ticket::id).or_else(|| self.released.get(name).copied()));
        named.unwrap_or_else(|| TicketId::from_raw(name.as_u64().unwrap_or(1 << 20)))
    }

    /// Makes a call with the arguments of the C interface. What a call makes gets the name of its last argument.
    fn make(&mut self, own: &'a Owners, call: &[Value]) -> Result<()> {
        let runtime = || &own.runtimes[text(&call[1])];
        let spiller = || &own.spillers[text(&call[1])];
        let device = own.device();
        let stream = |value: &Value| match text(value) {
            "SH_STREAM_HOST" => Stream::host(),
            _ => own.stream.as_ref().unwrap(),
        };
        let address = |value: &Value| match value.as_str() {
            Some("memory") => own.memory.as_ptr() as u64,
            Some("room") => own.memory.as_ptr() as u64 + (1 << 19),
            _ => number(value),
        };
        let key = |kind| (kind, call.get(1).map(Value::to_string).unwrap_or_default());
        let of_block = |kind, block: &Value| (kind, block.to_string());
        let last = call.last().and_then(Value::as_str).unwrap_or("").to_owned();
        match text(&call[0]) {
            "sh_acquire" => {
                let view = runtime().acquire(self.block(&call[2]), stream(&call[3]))?;
                self.held.insert(of_block("view", &call[2]), Held::View(view));
            }
            "sh_acquire_many" => drop(runtime().acquire_many(&self.blocks(&call[2]), stream(&call[4]))?),
            "sh_acquire_members" => {
                let members = self.sets[text(&call[2])].acquire(&numbers(&call[3]), stream(&call[5]))?;
                self.held.insert(of_block("members", &call[2]), Held::Members(members));
            }
            "sh_alloc" => {
                let contents = if call[3]["contents"].is_null() { Contents::Default } else { Contents::Drop };
                let options = AllocOptions { tag: call[3]["tag"].as_str(), contents, ..Default::default() };
                let made = device.alloc(number(&call[2]), &options)?;
                self.allocations.insert(last, made);
            }
            "sh_block_get_state" => runtime().block_info(self.block(&call[2])).map(drop)?,
            "sh_capture_begin" => drop(runtime().capture(stream(&call[2]))?),
            "sh_device_get_memory" => device.memory().map(drop)?,
            "sh_device_open" => drop(Device::open_with(text(&call[1]), &device_options(&call[2]))?),
            "sh_host_alloc" => drop(device.pinned_memory(size(&call[2]))?),
            "sh_invalidate_blocks" => runtime().invalidate(&self.blocks(&call[2]))?,
            "sh_keep_resident" => {
                let scope = runtime().keep_resident()?;
                self.held.insert(key("scope"), Held::Scope(scope));
            }
            "sh_mark_dirty" => self.view(&call[2]).mark_dirty()?,
            "sh_occupancy_get_info" => drop(device.occupancy(call[2].as_str())?),
            "sh_occupancy_read" => {
                let at = call[2].as_str().map_or_else(|| number(&call[2]), |name| self.allocations[name].address());
                let mut contents = vec![0; size(&call[3])];
                device.read_released(at, &mut contents)?;
            }
            "sh_pause" => {
                let tags: Option<Vec<&str>> = call[2]["tags"].as_array().map(|tags| tags.iter().map(text).collect());
                let range =
                    |one: &Value| MemoryRange { address: number(&one["address"]), bytes: number(&one["bytes"]) };
                let unused: Vec<MemoryRange> = list(&call[2]["unused"]).iter().map(range).collect();
                let to_file = call[2]["contents"] == "SH_CONTENTS_FILE";
                device.pause(&PauseOptions {
                    tags: tags.as_deref(),
                    contents: if to_file { Contents::File } else { Contents::Default },
                    unused: &unused,
                    folder: call[2]["folder"].as_str().map(Path::new),
                    prepare: call[2]["flags"] == "SH_OCCUPANCY_PREPARE",
                    ..Default::default()
                })?;
            }
            "sh_plan" => {
                let options = PlanOptions {
                    dry_run: call[2]["flags"] == "SH_PLAN_DRY_RUN",
                    budget_bytes: number(&call[2]["budget_bytes"]),
                    link_bytes_per_second: number(&call[2]["link_bytes_per_second"]),
                    ..Default::default()
                };
                runtime().plan_with(&options)?;
            }
            "sh_prefetch" => runtime().prefetch(&self.blocks(&call[2]))?,
            "sh_prefetch_members" => {
                let chance = |value: &Value| value.as_f64().unwrap() as f32;
                let chances = call[4].as_array().map(|all| all.iter().map(chance).collect::<Vec<_>>());
                self.sets[text(&call[2])].prefetch(&numbers(&call[3]), chances.as_deref())?;
            }
            "sh_prefetch_spilled" => {
                let pair = |(ticket, to)| (self.ticket(ticket), address(to));
                let pairs: Vec<_> = list(&call[2]).iter().zip(list(&call[3])).map(pair).collect();
                // SAFETY: the memory belongs to the owners.
                unsafe { spiller().prefetch(&pairs, stream(&call[5])) }?;
            }
            "sh_protect_blocks" => drop(runtime().protect(&self.blocks(&call[2]))?),
            "sh_read_block" => {
                let mut part = vec![0; size(&call[6])];
                self.view(&call[2]).read(number(&call[4]), &mut part)?;
            }
            "sh_register_blocks" => {
                let made = runtime().register_blocks(list(&call[2]).iter().map(desc))?;
                self.blocks.insert(last, made[0]);
            }
            "sh_register_parts" => {
                runtime().register_parts(desc(&call[2]), number(&call[3]["unit_bytes"]), PartLimits::default())?;
            }
            "sh_release" => self.end(of_block("view", &call[2]))?,
            "sh_release_members" => self.end(of_block("members", &call[2]))?,
            "sh_reserve" => drop(runtime().reserve(number(&call[2]), Priority::Primary)?),
            "sh_restore" => {
                let (ticket, to) = (self.ticket(&call[2]), address(&call[3]));
                // SAFETY: the memory belongs to the owners.
                let _ = unsafe { spiller().restore(ticket, to, stream(&call[4])) }?;
            }
            "sh_resume" => {
                let tags: Option<Vec<&str>> = call[2]["tags"].as_array().map(|tags| tags.iter().map(text).collect());
                device.resume(&ResumeOptions { tags: tags.as_deref(), ..Default::default() })?;
            }
            "sh_set_create" => {
                let made = runtime().register_set(list(&call[3]).iter().map(desc), &set_options(&call[2]))?;
                if let Some(name) = call[5].as_str() {
                    self.blocks.insert(name.to_owned(), made.blocks()[0]);
                }
                self.sets.insert(last, made);
            }
            "sh_set_destroy" => self.sets[text(&call[2])].unregister()?,
            "sh_set_get_info" => drop(self.sets[text(&call[2])].info()?),
            "sh_set_log" => set_log(LogLevel(i32::try_from(number(&call[1])).unwrap()), |_, _| ())?,
            "sh_set_schedule" => {
                let one = |one: &Value| Use::from(self.block(&one["block"]));
                runtime().set_schedule(&list(&call[2]).iter().map(one).collect::<Vec<_>>())?;
            }
            "sh_source_replace" => {
                let bytes = size(&call[3][0]["bytes"]);
                let block = self.block(&call[2]);
                let Some(Held::Update(update)) = self.held.get_mut(&key("update")) else { panic!("no update") };
                update.replace(block, [(0, Source::owned(vec![7; bytes]))])?;
            }
            "sh_source_update_begin" => {
                let update = runtime().update_sources(&self.blocks(&call[2]))?;
                self.held.insert(key("update"), Held::Update(update));
            }
            "sh_source_update_end" => self.end(key("update"))?,
            "sh_spill" => {
                let sizes: Vec<i64> = list(&call[2]["sizes"]).iter().filter_map(Value::as_i64).collect();
                let tensor = SavedTensor {
                    address: address(&call[2]["address"]),
                    element_bytes: 1,
                    sizes: &sizes,
                    ..Default::default()
                };
                // SAFETY: the memory belongs to the owners.
                let made = unsafe { spiller().spill(&tensor, stream(&call[3]), Leave::default()) }?;
                self.tickets.insert(last, made);
            }
            "sh_spiller_begin_step" => {
                let step = spiller().step(number(&call[2]))?;
                self.held.insert(key("spill step"), Held::SpillStep(step));
            }
            "sh_spiller_collect" => spiller().collect_all(&mut Vec::new(), stream(&call[2]))?,
            "sh_spiller_create" => drop(Spiller::with_options(device, &spiller_options(&call[2]))?),
            "sh_spiller_end_step" => self.end(key("spill step"))?,
            "sh_step_begin" => {
                let step = match call[2].as_str() {
                    Some(kind) => runtime().step_of_kind(kind)?,
                    None => runtime().step()?,
                };
                self.held.insert(key("step"), Held::Step(step));
            }
            "sh_step_end" => self.end(key("step"))?,
            "sh_stream_launch" => stream(&call[2]).launch(std::time::Duration::ZERO, || ())?,
            "sh_stream_synchronize" => stream(&call[2]).synchronize()?,
            "sh_telemetry_start" => {
                let scope = match call[1].as_str() {
                    Some(_) => runtime().telemetry_start(text(&call[3]))?,
                    None => own.spillers[text(&call[2])].telemetry_start(text(&call[3]))?,
                };
                self.held.insert((if call[1].is_null() { "spilled lines" } else { "lines" }, last), Held::Scope(scope));
            }
            "sh_ticket_get_info" => drop(spiller().info(self.ticket(&call[2]))?),
            "sh_ticket_release" => {
                let ticket = self.tickets.remove(text(&call[2])).unwrap();
                self.released.insert(text(&call[2]).to_owned(), ticket.id());
                ticket.release()?;
            }
            "sh_trace_start" => {
                let scope = trace_start(text(&call[1]))?;
                self.held.insert(("trace", last), Held::Scope(scope));
            }
            "sh_scope_end" => self.end(("trace", text(&call[1]).to_owned()))?,
            "sh_trim" => runtime().trim(number(&call[2])).map(drop)?,
            "sh_unpack" => unpack(&own.memory[..size(&call[2])], 0, &mut [])?,
            "sh_unregister_blocks" => runtime().unregister_blocks(&self.blocks(&call[2]))?,
            "sh_verify_block" => self.view(&call[2]).verify()?,
            "sh_write_back" if call[2].is_null() => runtime().write_back_all()?,
            "sh_write_back" => runtime().write_back(&self.blocks(&call[2]))?,
            other => panic!("{other} is not in this file, and table.json says not why"),
        }
        Ok(())
    }
}

fn is_excluded(what: &Value) -> bool {
    let names = what["not_in"].as_object().into_iter().flat_map(|reasons| reasons.keys());
    names.flat_map(|names| names.split(' ')).any(|name| name == "rust")
}

/// The row once for each value of its "each", which stands for "$".
fn variants(row: &Value) -> Vec<Value> {
    let with = |value: &Value| serde_json::from_str(&row.to_string().replace("\"$\"", &value.to_string())).unwrap();
    row["each"].as_array().map_or_else(|| vec![row.clone()], |values| values.iter().map(with).collect())
}

fn run(table: &Value, row: &Value) {
    let mut own = Owners { memory: vec![0; 1 << 20], ..Default::default() };
    let (made, rest): (Vec<_>, Vec<_>) =
        list(&table["world"]).iter().chain(list(&row["setup"])).map(list).partition(|call| own.make(call));
    assert!(!made.is_empty());
    let mut world = World::default();
    for call in rest {
        world.make(&own, call).unwrap_or_else(|error| panic!("{call:?}: {error}"));
    }
    for call in list(&row["calls"]).iter().map(list) {
        if is_excluded(&table["functions"][text(&call[0])]) {
            continue;
        }
        let Err(error) = world.make(&own, call) else { panic!("{}: not refused: {call:?}", row["name"]) };
        assert_eq!(error.status().name(), format!("SH_ERROR_{}", text(&row["status"])), "{call:?}: {error}");
        for part in list(&row["says"]) {
            let part = part.as_str().map_or_else(|| part.to_string(), str::to_owned);
            assert!(error.text().contains(&part), "{call:?}: {error}");
        }
    }
    let works = row.get("works").unwrap_or(&table["works"]);
    for call in list(&row["undo"]).iter().chain(list(works)).map(list) {
        if text(&call[0]) != "sh_runtime_destroy" {
            world.make(&own, call).unwrap_or_else(|error| panic!("{}: {call:?}: {error}", row["name"]));
        }
    }
}

#[test]
fn every_misuse_is_refused_and_loses_nothing() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/misuse/table.json");
    let table: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for row in list(&table["rows"]).iter().filter(|row| !is_excluded(row)) {
        variants(row).iter().for_each(|variant| run(&table, variant));
    }
}
