// A device of torch called npu, in the memory of the host: for tests of where tensors are, not of what is computed.
//
// Its tensors cannot be mixed with those of the host, and every op of torch works on them through torch's CPU fallback.
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/extension.h>

using namespace at;
namespace {
constexpr auto NPU = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex DEVICES = 2;
thread_local c10::DeviceIndex current = 0;
int64_t doubles = 0;  // fp64 tensors that were made on the device: the chip has no fp64

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = NPU;
  c10::DeviceType type() const override { return NPU; }
  c10::Device exchangeDevice(c10::Device to) const override {
    c10::Device before(NPU, current);
    current = to.index();
    return before;
  }
  c10::Device getDevice() const override { return {NPU, current}; }
  void setDevice(c10::Device to) const override { current = to.index(); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { current = to.index(); }
  c10::Stream getStream(c10::Device on) const override { return c10::Stream(c10::Stream::DEFAULT, on); }
  c10::Stream getNewStream(c10::Device on, int) const override { return c10::Stream(c10::Stream::DEFAULT, on); }
  c10::Stream exchangeStream(c10::Stream s) const override { return c10::Stream(c10::Stream::DEFAULT, s.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  void record(void **, const c10::Stream &, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void *, const c10::Stream &) const override {}
  bool queryEvent(void *) const override { return true; }
  void destroyEvent(void *, const c10::DeviceIndex) const noexcept override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void synchronizeStream(const c10::Stream &) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Memory final : c10::Allocator {
  static void give_back(void *p) { if (p) c10::free_cpu(p); }
  c10::DataPtr allocate(size_t bytes) override {
    void *p = bytes ? c10::alloc_cpu(bytes) : nullptr;
    return {p, p, &give_back, c10::Device(NPU, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void *to, const void *from, std::size_t bytes) const override { memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(NPU, &memory);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void *) const override { return false; }
  c10::Allocator *getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  const at::Generator &getDefaultGenerator(c10::DeviceIndex) const override {
    static auto generator = at::detail::getDefaultCPUGenerator();
    return generator;
  }
  void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override {
    auto *held = storage.unsafeGetStorageImpl();
    auto grown = memory.allocate(bytes);
    memcpy(grown.get(), held->data(), std::min(bytes, static_cast<size_t>(held->nbytes())));
    held->set_data_ptr_noswap(std::move(grown));
    held->set_nbytes(bytes);
  }
};

Tensor on_host(const Tensor &t) {  // the same memory, as a tensor of the host
  if (t.is_cpu()) return t;
  auto bytes = t.storage().nbytes();
  auto shared = c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                             c10::DataPtr(t.storage().mutable_data(), c10::Device(kCPU)), nullptr, false);
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(shared), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                       t.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return made;
}
const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);
void count(ScalarType type) { doubles += type == kDouble; }

Tensor make_empty(IntArrayRef size, std::optional<ScalarType> type, std::optional<Layout>, std::optional<Device> device,
             std::optional<bool>, std::optional<MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  count(type.value_or(kFloat));
  return at::detail::empty_generic(size, &memory, KEYS, type.value_or(kFloat), format);
}
Tensor make_strided(IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> type, std::optional<Layout>,
                     std::optional<Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  count(type.value_or(kFloat));
  return at::detail::empty_strided_generic(size, stride, &memory, KEYS, type.value_or(kFloat));
}
Tensor copy_from(const Tensor &from, const Tensor &to, bool) {
  at::NoGradGuard none;
  on_host(to).copy_(on_host(from));
  return to;
}
Tensor copy_and_resize(const Tensor &from, const Tensor &to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}
const Tensor &grow(const Tensor &t, c10::SymIntArrayRef to, std::optional<MemoryFormat>) {
  auto size = C10_AS_INTARRAYREF_SLOW(to);
  int64_t values = 1;
  for (auto n : size) values *= n;
  size_t bytes = (t.storage_offset() + values) * t.element_size();
  if (bytes > t.storage().nbytes()) Hooks().resizePrivateUse1Bytes(t.storage(), bytes);
  t.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return t;
}
void on_the_processor(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}
}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("record_stream", [](at::Tensor &, c10::Stream) {});
  m.impl("empty.memory_format", make_empty);
  m.impl("empty_strided", make_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_and_resize);
  m.impl("_local_scalar_dense", [](const Tensor &t) { return at::_local_scalar_dense(on_host(t)); });
  m.impl("fill_.Scalar", [](Tensor &t, const Scalar &v) -> Tensor & { on_host(t).fill_(v); return t; });
  m.impl("zero_", [](Tensor &t) -> Tensor & { on_host(t).zero_(); return t; });
  m.impl("resize_", grow);
  m.impl("view", [](const Tensor &t, c10::SymIntArrayRef s) { return at::native::view(t, C10_AS_INTARRAYREF_SLOW(s)); });
  m.impl("view.dtype", [](const Tensor &t, ScalarType type) { return at::native::view_dtype(t, type); });
  m.impl("as_strided", [](const Tensor &t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                          std::optional<c10::SymInt> at) {
    auto offset = at ? std::optional<int64_t>(at->guard_int(__FILE__, __LINE__)) : std::nullopt;
    return at::native::as_strided_tensorimpl(t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset);
  });
  m.impl("unfold", [](const Tensor &t, int64_t dim, int64_t size, int64_t step) {
    return at::native::unfold(t, dim, size, step);
  });
  m.impl("_reshape_alias", [](const Tensor &t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
    return at::native::_reshape_alias(t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  });
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_processor>());
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("start", [] { at::RegisterPrivateUse1HooksInterface(new Hooks()); });
  m.def("set_device", [](int index) { current = static_cast<c10::DeviceIndex>(index); });
  m.def("current_device", [] { return static_cast<int>(current); });
  m.def("on_host", &on_host);
  m.def("doubles", [] { return doubles; });
}
