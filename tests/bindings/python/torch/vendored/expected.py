"""The tests of autograd that fail in a surrounding and pass without streaming, each with the reason and with words of
its failure. Every other test passes.
"""

from autograd_hooks import SURROUNDINGS

TOO_LONG = {"test_multi_grad_all_hooks": "it compiles C++ for a minute"}

# Any hooks for saved tensors do this, also those of `torch.autograd.graph.saved_tensors_hooks`.
ALWAYS = [
    (
        "it sets hooks of a saved tensor by itself, and PyTorch allows one pair of them",
        "Calling register_hooks on a saved tensor whose hooks have already been set",
        """
        test_custom_function_saved_tensors test_grad_fn_attr_bindings
        test_pack_hook_with_inplace_modification_should_fail
        test_saved_tensor_hooks_extra_exit_during_bw_no_crash
        test_saved_variable_packing_unpacking_did_not_save_original_with_hooks
        test_saved_variable_packing_unpacking_saved_original_with_hooks
        """,
    ),
    (
        "it asks for the object that was saved, and PyTorch makes a new one of what hooks return",
        " is not tensor(",
        """
        test_checkpointing_without_reentrant_saved_object_identity test_no_unnecessary_unwrapping
        """,
    ),
    ("it forbids hooks, while these are in force", "RuntimeError: error message", "test_disabling_saved_tensor_hooks"),
    ("it forbids hooks, while these are in force", "RuntimeError: outer", "test_disabling_saved_tensor_hooks_nested"),
    (
        "PyTorch does not see that a saved tensor was detached in place if there are hooks; its gradient is right",
        "RuntimeError not raised",
        "test_saved_variable_saved_original_inplace_detach",
    ),
]
# Any TorchDispatchMode does this. One is in force in the first step of each kind, and where results are computed again.
FIRST_STEP = [
    (
        "a view of a tensor of inference mode is no error in a mode",
        "RuntimeError not raised",
        "test_inference_mode_handle_direct_view_on_rebase",
    ),
    (
        "PyTorch does not make a subclass of the tensor that a mode returns",
        "Creating a new Tensor subclass Custom but the raw Tensor object is already associated",
        "test_custom_function_preserve_torch_function_when_return_as_is",
    ),
    ("it asks that a gradient is not copied", "False is not true", "test_no_grad_copy_sparse"),
    ("it traces a function, which fails in a mode", "instead found type 'int'", "test_profiler_propagation"),
    ("it counts the events of the profiler", "Expected 3 but got 4", "test_profiler_seq_nr"),
    ("its own class of tensors fails in a mode", "INTERNAL ASSERT FAILED", "test_make_dual_torch_dispatch"),
]
WEIGHTS = [
    (
        "a saved weight that is read outside a backward is a copy, which does not see later changes",
        "Tensor-likes are not close!",
        "test_saved_variable_version_counter",
    ),
    (
        "a backward in another thread needs a weight during a call of the model, which is refused",
        "Around is streamed, and another thread uses it now",
        "test_multi_grad_any_hooks test_python_thread_in_middle",
    ),
    (
        "a backward in another thread needs a weight during a call of the model, which is refused",
        "The following operation failed in the TorchScript interpreter",
        "test_fork_join_in_middle",
    ),
    (
        "a weight cannot be part of a gradient that is differentiated again, and the error says so",
        "streamed weights do not support a backward that is differentiated again (create_graph=True)",
        """
        test_anomaly_assign_parent_cleanup test_backward_create_graph_warns test_backward_with_nonleaf_inputs
        test_create_graph_and_full_backward_hook_cycle test_custom_autograd_no_early_free
        test_custom_autograd_repeated_grad_grad test_default_saved_tensors_hooks_double_backward
        test_full_backward_hook_double_backward test_grad test_grad_materialize_grads test_grad_nonleaf
        test_hessian_create_graph_vectorize_False_base_tensor
        test_hessian_create_graph_vectorize_True_base_tensor test_hessian_err_check_strict_vectorize_base_tensor
        test_hessian_err_check_vectorize_False_base_tensor test_hessian_err_check_vectorize_True_base_tensor
        test_hessian_match_vhp_hvp_base_tensor test_hessian_no_grad_base_tensor test_hessian_output_base_tensor
        test_hessian_output_vectorized_base_tensor test_hessian_vector
        test_hessian_vectorize_correctness_multi_input_base_tensor
        test_hessian_vectorize_correctness_simple_base_tensor
        test_hessian_vectorize_correctness_unrelated_outputs_base_tensor
        test_hessian_vectorize_raises_no_warnings_base_tensor test_hvp_create_graph_base_tensor
        test_hvp_err_check_base_tensor test_hvp_no_grad_base_tensor test_hvp_output_base_tensor
        test_hvp_scalar_base_tensor test_inplace_on_view_backward test_inplace_on_view_gradcheck_cpu
        test_inplace_on_view_makes_base_require_grad_cpu test_jacobian_create_graph_vectorize_False_base_tensor
        test_jacobian_create_graph_vectorize_True_base_tensor test_jacobian_match_vjp_jvp_base_tensor
        test_jacobian_no_grad_base_tensor test_jvp_create_graph_base_tensor test_lobpcg
        test_mv_grad_stride_0_cpu test_nested_anomaly_detect_nan test_nested_anomaly_printstack_cleanup
        test_nested_checkpoint_early_stop_False test_nested_checkpoint_early_stop_True
        test_nested_checkpoint_two_children_early_stop_False test_nested_checkpoint_two_children_early_stop_True
        test_scatter_index_reduce_prod_gradgrad_error_cpu test_unrelated_inputs
        test_vhp_create_graph_base_tensor test_vhp_err_check_base_tensor test_vhp_no_grad_base_tensor
        test_vhp_output_base_tensor test_vjp_create_graph_base_tensor test_where_functional_cpu
        test_where_scalar_cpu
        """,
    ),
]
SPILLED = [
    (
        "it changes a saved tensor in place and wants an error; the tensor had left, and its gradient is right",
        "RuntimeError not raised",
        "test_anomaly_grad_warnings test_inplace test_basic test_views test_inference_mode_existing_autograd_session",
    ),
    (
        "it looks at a saved result that has left, which is other memory and does not see later changes",
        "Tensor-likes are not close!",
        "test_saved_variable_version_counter",
    ),
]
# Those with threads, in which the backward may also come when the call is over.
MAY_PASS = {"test_multi_grad_any_hooks", "test_python_thread_in_middle", "test_fork_join_in_middle"}


def by_name(*groups):
    return {name: (reason, words) for group in groups for reason, words, names in group for name in names.split()}


EXPECTED = {name: by_name(ALWAYS) for name in SURROUNDINGS}
EXPECTED["first step"] = by_name(ALWAYS, FIRST_STEP)
EXPECTED["weights"] = by_name(ALWAYS, WEIGHTS)
EXPECTED["spilled"] = by_name(ALWAYS, SPILLED)
EXPECTED["computed again"] = by_name(ALWAYS, FIRST_STEP, SPILLED)
