"""Evidence: turns the bytes of a run directory, or of any files, into facts and evidence for a diagnosis.

readers/ has one reader a kind of file, cluster/ reads the journal of pods, attempt/ observes one attempt
incrementally.
Faces: attempt.observer (a run) and files.log_files (a pile of files). Writes nothing; draws no verdict.
Imports rundir, kernellog, verdict.signatures, verdict.diagnose and model; never collect.
"""
