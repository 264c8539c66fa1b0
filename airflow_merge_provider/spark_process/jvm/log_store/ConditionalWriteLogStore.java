package airflow_merge_provider;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options.CreateFileOptionKeys;
import org.apache.hadoop.fs.Path;

/**
 * Writes the log of Delta tables on S3 so that of several writers of one version exactly one succeeds.
 *
 * <p>Each log entry is written with the condition that no object has its key ({@code If-None-Match: *}). The
 * option of Hadoop's S3 client that sends the condition is mandatory here: a client that does not know it
 * refuses to write. Before the first write to a bucket, two writes of one key show whether the store honours
 * the condition.
 */
public class ConditionalWriteLogStore extends HadoopFileSystemLogStore {
  private static final int ATTEMPTS_MAX = 5;
  private static final long PAUSE_MILLISECONDS = 200;
  private static final Set<String> CHECKED_BUCKETS = ConcurrentHashMap.newKeySet();

  public ConditionalWriteLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    FileSystem files = path.getFileSystem(configuration);
    byte[] content = join(actions);
    if (overwrite) {
      writeOrAbort(files.create(path, true), content);
      return;
    }
    requireConditionalWrites(files, path);
    writeOnce(files, path, content);
  }

  /** An object becomes visible when it is complete. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
    return false;
  }

  /**
   * Writes an object if there is none with its key.
   *
   * <p>A failed write can have succeeded: if the answer of the store is lost, the client writes again and its
   * own object fails the condition. The content of the object tells; each commit has a unique ID.
   *
   * @throws FileAlreadyExistsException if there is another object with the key
   */
  private static void writeOnce(FileSystem files, Path path, byte[] content) throws IOException {
    for (int attempt = 1; ; attempt++) {
      try {
        writeConditionally(files, path, content);
        return;
      } catch (IOException error) {
        byte[] stored = readIfExists(files, path);
        if (stored != null) {
          if (Arrays.equals(stored, content)) {
            return;
          }
          FileAlreadyExistsException lost = new FileAlreadyExistsException(path.toString());
          lost.initCause(error);
          throw lost;
        }
        // S3 answers 409 to a write during another one that then fails.
        if (attempt == ATTEMPTS_MAX || !hasStatus(error, "409")) {
          throw error;
        }
        pause(attempt * PAUSE_MILLISECONDS);
      }
    }
  }

  private static void writeConditionally(FileSystem files, Path path, byte[] content) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path);
    builder.recursive();
    builder.must(CreateFileOptionKeys.FS_OPTION_CREATE_CONDITIONAL_OVERWRITE, true);
    FSDataOutputStream stream;
    try {
      stream = builder.build();
    } catch (IllegalArgumentException | UnsupportedOperationException error) {
      throw new IOException(
          "The client of " + files.getUri() + " cannot write on a condition: use hadoop-aws 3.4.2 or later", error);
    }
    writeOrAbort(stream, content);
  }

  /**
   * Writes the content of an object.
   *
   * <p>To close a stream whose write has failed would make an object of what it has.
   */
  private static void writeOrAbort(FSDataOutputStream stream, byte[] content) throws IOException {
    try {
      stream.write(content);
    } catch (IOException | RuntimeException error) {
      try {
        stream.abort();
      } catch (RuntimeException failure) {
        // Neither complete nor aborted: the store removes the parts of an upload that nobody completes.
        error.addSuppressed(failure);
      }
      throw error;
    }
    stream.close();
  }

  /**
   * Checks once for each bucket of this process that a second write of a key fails.
   *
   * @throws IOException if the store overwrites the object or refuses the condition
   */
  private static void requireConditionalWrites(FileSystem files, Path path) throws IOException {
    String bucket = files.getUri().toString();
    if (CHECKED_BUCKETS.contains(bucket)) {
      return;
    }
    Path probe = new Path(path.getParent(), ".conditional-write-" + UUID.randomUUID());
    byte[] first = "first".getBytes(StandardCharsets.UTF_8);
    byte[] second = "second".getBytes(StandardCharsets.UTF_8);
    try {
      writeOnce(files, probe, first);
      try {
        writeOnce(files, probe, second);
        throw new IOException(
            bucket
                + " does not support conditional writes (If-None-Match): two writers could overwrite each"
                + " other's commits, so nothing was committed");
      } catch (FileAlreadyExistsException expected) {
        CHECKED_BUCKETS.add(bucket);
      }
    } finally {
      files.delete(probe, false);
    }
  }

  private static byte[] join(Iterator<String> actions) {
    StringBuilder text = new StringBuilder();
    while (actions.hasNext()) {
      text.append(actions.next()).append('\n');
    }
    return text.toString().getBytes(StandardCharsets.UTF_8);
  }

  private static byte[] readIfExists(FileSystem files, Path path) throws IOException {
    try (FSDataInputStream stream = files.open(path)) {
      ByteArrayOutputStream content = new ByteArrayOutputStream();
      stream.transferTo(content);
      return content.toByteArray();
    } catch (FileNotFoundException error) {
      return null;
    }
  }

  private static boolean hasStatus(Throwable error, String status) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (String.valueOf(cause.getMessage()).contains("Status Code: " + status)) {
        return true;
      }
    }
    return false;
  }

  private static void pause(long milliseconds) throws IOException {
    try {
      Thread.sleep(milliseconds);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IOException("The write of a log entry was interrupted", error);
    }
  }
}
