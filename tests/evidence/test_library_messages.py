"""Messages of libraries at which a job ends, each in a short log, with the cause that they mean."""

from __future__ import annotations

import pytest

from rankfall.explain import explain_files

LOGS = [
    (
        "bad_parallel_config",
        """[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/train.py", line 31, in <module>
[rank0]:     main()
[rank0]:   File "/w/train.py", line 12, in main
[rank0]:     engine = PipelineModule(layers, num_stages=3)
[rank0]:   File "/usr/lib/python3/site-packages/deepspeed/runtime/pipe/module.py", line 155, in __init__
[rank0]:     raise RuntimeError(
[rank0]: RuntimeError: num_stages (3) must divide distributed world size (8)
""",
    ),
    (
        "bad_parallel_config",
        """using world size: 8, data-parallel size: 2, tensor-model-parallel size: 4
Traceback (most recent call last):
  File "/w/pretrain_gpt.py", line 265, in <module>
    pretrain(provider, model_provider)
  File "/w/megatron/core/transformer/transformer_config.py", line 610, in __post_init__
    raise ValueError(
ValueError: num_query_groups (2) must be a multiple of tensor_model_parallel_size (4).
""",
    ),
    (
        "bad_parallel_config",
        """I0501 10:00:00.100000 4100 train.py:40] 2 processes, 8 devices
Traceback (most recent call last):
  File "/w/train.py", line 44, in <module>
    mesh = jax.make_mesh((4, 4), ("data", "model"))
  File "/usr/lib/python3/site-packages/jax/_src/mesh_utils.py", line 331, in create_device_mesh
    raise ValueError(
ValueError: Number of devices 8 must equal the product of mesh_shape (4, 4)
""",
    ),
    (
        "bad_parallel_config",
        """[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/fit.py", line 9, in <module>
[rank0]:     trainer = Trainer(num_nodes=2, devices=8)
[rank0]: ValueError: You set `num_nodes=2` in Lightning, but the number of nodes configured in SLURM `--nodes=4` does not match. HINT: Set `num_nodes=4`.
""",
    ),
    (
        "checkpoint_mismatch",
        """resuming from /ckpt/step-200
[rank3]: Traceback (most recent call last):
[rank3]:   File "/w/train.py", line 50, in <module>
[rank3]:     dcp.load(state, checkpoint_id="/ckpt/step-200")
[rank3]: RuntimeError: Global world size at save time was 16, but at load time was 8
""",
    ),
    (
        "checkpoint_mismatch",
        """Traceback (most recent call last):
  File "/w/pretrain_gpt.py", line 265, in <module>
    pretrain(provider, model_provider)
  File "/w/megatron/training/checkpointing.py", line 148, in _compare
    assert checkpoint_value == args_value, error_message
AssertionError: hidden_size value from checkpoint (1024) is not equal to the input argument value (2048).
""",
    ),
    (
        "checkpoint_mismatch",
        """Loading checkpoint shards:  50%|#####     | 1/2
Traceback (most recent call last):
  File "/w/sft.py", line 20, in <module>
    model = AutoModelForCausalLM.from_pretrained("/models/a")
RuntimeError: You set `ignore_mismatched_sizes` to `False`, thus raising an error. For details look at the above report!
""",
    ),
    (
        "checkpoint_corrupt",
        """Traceback (most recent call last):
  File "/w/zero_to_fp32.py", line 600, in <module>
    convert(args.checkpoint_dir, args.output_dir)
  File "/w/zero_to_fp32.py", line 240, in parse_optim_states
    raise ValueError(
ValueError: Expected 8 of '*_optim_states.pt' under '/ckpt/global_step100' but found 7 files. Possibly due to an overwrite of an old checkpoint, or a checkpoint didn't get saved by one or more processes.
""",
    ),
    (
        "checkpoint_corrupt",
        """Traceback (most recent call last):
  File "/w/sft.py", line 20, in <module>
    model = AutoModelForCausalLM.from_pretrained("/models/llama")
OSError: You seem to have cloned a repository without having git-lfs installed. Please install git-lfs and run `git lfs install` followed by `git lfs pull` in the folder you cloned.
""",
    ),
    (
        "dataset_missing",
        """Traceback (most recent call last):
  File "/w/sft.py", line 44, in <module>
    trainer.train(resume_from_checkpoint=True)
  File "/usr/lib/python3/site-packages/transformers/trainer.py", line 2190, in train
    raise ValueError(f"No valid checkpoint found in output directory ({args.output_dir})")
ValueError: No valid checkpoint found in output directory (/out)
""",
    ),
    (
        "dataset_missing",
        """Traceback (most recent call last):
  File "/w/train.py", line 14, in <module>
    env = lmdb.open("/data/train.lmdb", readonly=True, lock=False)
lmdb.Error: /data/train.lmdb: No such file or directory
""",
    ),
    (
        "hub_unreachable",
        """model-00001-of-00004.safetensors:  21%|##1       | 1.07G/4.98G
Traceback (most recent call last):
  File "/w/sft.py", line 20, in <module>
    model = AutoModelForCausalLM.from_pretrained("org/llama")
OSError: Consistency check failed: file should be of size 4976698592 but has size 1073741824 (model-00001-of-00004.safetensors).
""",
    ),
    (
        "hub_unreachable",
        """+ curl -fsS -o tokenizer.model https://data.example.com/tokenizer.model
curl: (7) Failed to connect to data.example.com port 443: Connection refused
""",
    ),
    (
        "hub_rate_limit",
        """Traceback (most recent call last):
  File "/w/get.py", line 3, in <module>
    snapshot_download("org/data", repo_type="dataset")
RuntimeError: Data processing error: CAS service error : Reqwest Error: HTTP status client error (429 Too Many Requests), domain: https://cas-server.xethub.hf.co
""",
    ),
    (
        "credentials_rejected",
        """Traceback (most recent call last):
  File "/w/sft.py", line 20, in <module>
    tokenizer = AutoTokenizer.from_pretrained("org/llama")
OSError: org/llama is a gated repository. Make sure to request access at https://huggingface.co/org/llama and pass a token having permission to this repo
""",
    ),
    (
        "credentials_rejected",
        """Copying gs://data/train-000.tar...
ServiceException: 401 Anonymous caller does not have storage.objects.list access to bucket data.
""",
    ),
    (
        "bad_sample",
        """step 310 loss 2.1
Traceback (most recent call last):
  File "/w/train.py", line 61, in <module>
    for batch in loader:
  File "/w/data.py", line 18, in __getitem__
    return self.file["tokens"][index]
OSError: Can't synchronously read data (filter returned failure during read)
""",
    ),
    (
        "bad_sample",
        """step 310 loss 2.1
Traceback (most recent call last):
  File "/w/data.py", line 18, in __getitem__
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
cv2.error: OpenCV(4.8.0) /io/opencv/modules/imgproc/src/color.cpp:182: error: (-215:Assertion failed) !_src.empty() in function 'cvtColor'
""",
    ),
    (
        "shared_fs_error",
        """Traceback (most recent call last):
  File "/w/data.py", line 9, in __init__
    self.file = h5py.File("/nfs/train.h5")
OSError: Unable to open file (unable to lock file, errno = 37, error message = 'No locks available')
""",
    ),
    (
        "permission_denied",
        """Traceback (most recent call last):
  File "/w/data.py", line 9, in __init__
    self.file = h5py.File("/data/train.h5")
OSError: Unable to open file (unable to open file: name = '/data/train.h5', errno = 13, error message = 'Permission denied', flags = 0, o_flags = 0)
""",
    ),
    (
        "host_alloc_failed",
        """Loading checkpoint shards:   0%|          | 0/4
Traceback (most recent call last):
  File "/w/serve.py", line 8, in <module>
    state = load_file("/models/model.safetensors")
RuntimeError: unable to mmap 16060522496 bytes from file </models/model.safetensors>: Cannot allocate memory (12)
""",
    ),
    (
        "gpu_oom",
        """INFO 05-01 10:00:00 gpu_executor.py:122] # GPU blocks: 0, # CPU blocks: 2048
Traceback (most recent call last):
  File "/w/rollout.py", line 11, in <module>
    llm = LLM(model="/models/a")
ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.
""",
    ),
    (
        "gpu_oom_foreign",
        """Traceback (most recent call last):
  File "/w/rollout.py", line 11, in <module>
    llm = LLM(model="/models/a")
ValueError: Free memory on device cuda:0 (3.52/79.10 GiB) on startup is less than desired GPU memory utilization (0.9, 71.19 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.
""",
    ),
    (
        "cuda_illegal_access",
        """step 12 loss 3.1
:0:rocdevice.cpp            :2660: 1234567890 us: Callback: Queue 0x7f0000 Aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond the largest legal address. code: 0x29
Aborted (core dumped)
""",
    ),
    (
        "nan_loss",
        """step 99 loss 2.0
/pytorch/torch/csrc/distributed/c10d/NanCheck.cu:163: checkBytePack: block: [0,0,0], thread: [0,0,0] Assertion `!isnan(data[i])` failed.
[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/train.py", line 71, in <module>
[rank0]:     torch.cuda.synchronize()
[rank0]: torch.AcceleratorError: CUDA error: device-side assert triggered
""",
    ),
    (
        "driver_too_old",
        """[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/train.py", line 4, in <module>
[rank0]:     torch.cuda.set_device(0)
[rank0]: RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver / cuda driver combination
""",
    ),
    (
        "no_gpu_visible",
        """Traceback (most recent call last):
  File "/w/train.py", line 22, in <module>
    state = torch.load("/ckpt/last.pt")
RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you are running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu') to map your storages to the CPU.
""",
    ),
    (
        "gpu_busy",
        """Traceback (most recent call last):
  File "/w/train.py", line 3, in <module>
    print(jax.devices())
RuntimeError: Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 1234. Not attempting to load libtpu.so in this process.
""",
    ),
    (
        "nccl_invalid_usage",
        """gpu-1:4123:4123 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
gpu-1:4123:4123 [0] misc/argcheck.cc:33 NCCL WARN Broadcast : invalid root 8 (root should be in the 0..8 range)
""",
    ),
    (
        "peer_lost",
        """step 20 loss 1.2
F0501 10:00:00.000000    1234 client.h:80] Terminating process because the JAX distributed service detected fatal errors. This most likely indicates that another task died; see the other task logs for more details.
""",
    ),
    (
        "collective_mismatch",
        """[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/train.py", line 71, in <module>
[rank0]:     out = model(batch)
[rank0]: RuntimeError: Forward order differs across ranks: rank 0 is all-gathering 3 parameters while rank 1 is all-gathering 4 parameters
""",
    ),
    (
        "bad_arguments",
        """--------------------------------------------------------------------------
There are not enough slots available in the system to satisfy the 16
slots that were requested by the application:

  python

Either request fewer procs for your application, or make more slots
available for use.
--------------------------------------------------------------------------
""",
    ),
    (
        "bad_arguments",
        """srun: error: Unable to allocate resources: Invalid account or account/partition combination specified
""",
    ),
    (
        "bad_arguments",
        """Traceback (most recent call last):
  File "/w/fit.py", line 9, in <module>
    trainer = Trainer(devices=0)
lightning.fabric.utilities.exceptions.MisconfigurationException: `Trainer(devices=0)` value is not a valid input using CUDAAccelerator accelerator.
""",
    ),
    (
        "command_not_found",
        """--------------------------------------------------------------------------
mpirun was unable to find the specified executable file, and therefore did not
launch the job.  This error was first reported for process rank 0; it may have
occurred for other processes as well.
""",
    ),
    (
        "import_error",
        """Using /root/.cache/torch_extensions/py311_cu121 as PyTorch extensions root...
Traceback (most recent call last):
  File "/w/train.py", line 30, in <module>
    optimizer = FusedAdam(model.parameters())
RuntimeError: Error building extension 'fused_adam'
""",
    ),
    (
        "rdzv_unreachable",
        """Traceback (most recent call last):
  File "/usr/local/bin/ray", line 8, in <module>
    sys.exit(main())
Exception: The current node timed out during startup. This could happen because some of the raylet failed to startup or the GCS has become overloaded.
""",
    ),
    (
        "image_pull",
        """slurmstepd: error: pyxis: child 4123 failed with error code: 1
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis: printing enroot log file:
slurmstepd: error: pyxis:     [ERROR] URL https://registry-1.docker.io/v2/nvidia/pytorch/manifests/24.99 returned error code: 404 Not Found
slurmstepd: error: pyxis: couldn't start container
""",
    ),
    (
        "rdzv_unreachable",
        """A process or daemon was unable to complete a TCP connection
to another process:
  Local host:    n2
ORTE was unable to reliably start one or more daemons.
This usually is caused by:
""",
    ),
    (
        "unschedulable",
        """INFO Launching trainer
WARNING worker.py:1245 -- The actor or task with ID ff cannot be scheduled right now. The error may be a lack of GPUs.
""",
    ),
    (
        "native_abort",
        """F0501 10:00:00.123456  1234 pipeline.cc:12] Check failed: a == b (1 vs. 2)
*** Check failure stack trace: ***
    @     0x7f0000000000  google::LogMessage::Fail()
""",
    ),
    (
        "host_oom",
        """step 310 loss 2.1
=>> PBS: job killed: mem 131072000kb exceeded limit 130023424kb
""",
    ),
]


@pytest.mark.parametrize(("slug", "text"), LOGS)
def test_i23_p3_a_message_of_a_library_names_the_cause(why, slug, text):
    assert why(text).cause.slug == slug


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        # Of a library that no signature knows: the first line with a reason, and what follows from it.
        (["E fabric: endpoint 3 failed: unreachable", "E fabric: group failed", "E runtime: cannot go on"], 0),
        (["step 3 failed", "E store: cannot open shard 7", "E loader: failed"], 1),
        # The last line has a reason of its own.
        (["E fabric: endpoint 3 failed", "E runtime: failed: quota exceeded"], 1),
        (["E fabric: group failed", "E runtime: cannot go on"], 1),
    ],
)
def test_the_line_that_states_a_reason_is_shown_before_what_follows_from_it(tmp_path, lines, shown):
    path = tmp_path / "job.log"
    path.write_text("\n".join(["step 1 loss 2.0", *lines]) + "\n")
    verdict = explain_files([path]).verdict
    assert verdict.cause.slug == "unknown"
    assert verdict.decisive.line == lines[shown]
    assert verdict.decisive.where == f"{path}:{shown + 2}"
