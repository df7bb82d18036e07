// What warpgroups and the two blocks of a cluster tell each other: transaction barriers and writes to the neighbour.
#ifndef DEEPINFER_ATTENTION_BARRIERS_CUH
#define DEEPINFER_ATTENTION_BARRIERS_CUH
namespace di {

using Bar = unsigned long long;

static __device__ __forceinline__ unsigned at_shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
static __device__ __forceinline__ void bar_init(Bar *b, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at_shared(b)), "r"(count) : "memory");
}
static __device__ __forceinline__ void bar_arrive(Bar *b) {
  asm volatile("{\n .reg .b64 s;\n mbarrier.arrive.shared.b64 s, [%0];\n}" ::"r"(at_shared(b)) : "memory");
}
static __device__ __forceinline__ void bar_expect(Bar *b, int bytes) {
  asm volatile("{\n .reg .b64 s;\n mbarrier.arrive.expect_tx.shared.b64 s, [%0], %1;\n}" ::"r"(at_shared(b)), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void bar_wait(Bar *b, int parity) {
  asm volatile("{\n .reg .pred p;\n AGAIN: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n @p bra DONE;\n bra AGAIN;\n DONE:\n}" ::"r"(
                   at_shared(b)), "r"(parity) : "memory");
}
template <int THREADS> static __device__ __forceinline__ void meet(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
// What this thread wrote to shared memory, made visible to matrix products.
static __device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Once for all threads of the cluster: its barriers are made, and may be told of from the other block.
static __device__ __forceinline__ void cluster_begin() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
static __device__ __forceinline__ void cluster_ready() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The address of `here` in block `rank` of the cluster.
static __device__ __forceinline__ unsigned over_there(const void *here, int rank) {
  unsigned remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at_shared(here)), "r"(rank));
  return remote;
}
static __device__ __forceinline__ void arrive_at(unsigned bar) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Writes to the other block that its barrier `bar` counts by their bytes.
static __device__ __forceinline__ void send(unsigned to, float a, unsigned bar) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(a), "r"(bar) : "memory");
}
static __device__ __forceinline__ void send4(unsigned to, const unsigned *v, unsigned bar) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(bar) : "memory");
}

}  // namespace di
#endif
