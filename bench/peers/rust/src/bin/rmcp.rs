//! With the system's allocator.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    erlmcp_bench_peers::main()
}
