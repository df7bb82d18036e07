// A ring of stages in shared memory that the copy engine fills: barriers of 64 bits, and copies of adjacent bytes.
#ifndef DEEPINFER_RING_CUH
#define DEEPINFER_RING_CUH
#include <stdint.h>

#define DI_RING static __device__ __forceinline__

DI_RING uint32_t di_shared_place(const void* pointer) { return static_cast<uint32_t>(__cvta_generic_to_shared(pointer)); }

// A barrier that `arrivals` threads arrive at in each of its phases.
DI_RING void di_barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(di_shared_place(barrier)), "r"(arrivals) : "memory");
}

// What was initialised is seen by the copy engine.
DI_RING void di_barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DI_RING void di_barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(di_shared_place(barrier)) : "memory");
}

// Arrives, and tells the barrier how many bytes the phase has to wait for.
DI_RING void di_barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(di_shared_place(barrier)), "r"(bytes)
               : "memory");
}

DI_RING void di_barrier_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(di_shared_place(barrier)), "r"(parity)
        : "memory");
  }
}

// Adjacent bytes from memory, a multiple of 16 at a multiple of 16.
DI_RING void di_copy_bytes(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   di_shared_place(to)),
               "l"(from), "r"(bytes), "r"(di_shared_place(barrier))
               : "memory");
}
#endif
